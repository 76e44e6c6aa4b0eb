// Package opensearchtest runs a node of OpenSearch, without the plugin for security.
package opensearchtest

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/test/internal/freeport"
	"github.com/kubeferry/kubeferry/test/internal/maven"
	"github.com/kubeferry/kubeferry/test/internal/process"
)

var (
	//go:embed pom.xml
	pom string
	// source is the program that runs the node: the jars have none. Java compiles it when it starts.
	//
	//go:embed Main.java
	source []byte
)

func program() maven.Program { return maven.Program{Name: "opensearch", POM: pom} }

// Prepare fetches OpenSearch unless it is in the user's cache. It belongs before the tests, in TestMain.
func Prepare(ctx context.Context, log io.Writer) error { return program().Prepare(ctx, log) }

// startTimeout bounds the start, which takes seconds on a machine that is not busy.
const startTimeout = 2 * time.Minute

// Node is a node that ends with the test. Its methods fail the test instead of returning errors.
type Node struct {
	tb  testing.TB
	URL string
}

// Start runs a node.
func Start(tb testing.TB) *Node {
	tb.Helper()
	java, classpath, err := program().Find()
	if err != nil {
		tb.Fatal(err)
	}
	port, err := freeport.Pick()
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "Main.java"), source, 0o600), os.Mkdir(filepath.Join(dir, "config"), 0o700)); err != nil {
		tb.Fatal(err)
	}
	p, err := process.Start(process.Options{
		Path: java,
		Args: []string{
			"-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Djava.io.tmpdir=" + dir,
			"-cp", classpath, filepath.Join(dir, "Main.java"), dir, fmt.Sprint(port),
		},
		Dir: dir,
		Log: filepath.Join(dir, "opensearch.log"),
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		p.Kill()
		if tb.Failed() {
			tb.Logf("log of OpenSearch:\n%s", p.LogTail())
		}
	})
	n := &Node{tb: tb, URL: "http://" + freeport.Addr(port)}
	ctx, cancel := context.WithTimeout(tb.Context(), startTimeout)
	defer cancel()
	if err := p.WaitReady(ctx, func(ctx context.Context) error {
		_, err := n.do(ctx, http.MethodGet, "/", nil)
		return err
	}); err != nil {
		tb.Fatal(err)
	}
	return n
}

// Do sends a request with a JSON body, or none, and returns the answer, which must be of success.
func (n *Node) Do(method, path string, body []byte) []byte {
	n.tb.Helper()
	answer, err := n.do(n.tb.Context(), method, path, body)
	if err != nil {
		n.tb.Fatal(err)
	}
	return answer
}

func (n *Node) do(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, n.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(request)
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode/100 != 2 {
		err = fmt.Errorf("%s %s: %s: %.500s", method, path, response.Status, answer)
	}
	return answer, err
}
