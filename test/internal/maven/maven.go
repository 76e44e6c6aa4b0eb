// Package maven fetches programs in Java for tests.
package maven

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/kubeferry/kubeferry/test/internal/cache"
)

// Program is a program with its jars in the user's cache.
type Program struct {
	// Name of it, and of its folder in the cache.
	Name string
	// POM pins its version and what it depends on.
	POM string
}

// Prepare fetches the jars unless they are in the cache.
func (p Program) Prepare(ctx context.Context, log io.Writer) error {
	if _, err := exec.LookPath("java"); err != nil {
		return err
	}
	_, err := cache.Dir(ctx, log, p.jars(), func(ctx context.Context, dir string) error {
		fmt.Fprintf(log, "fetching %s, 45 MB\n", p.Name)
		return p.fetch(ctx, dir)
	})
	return err
}

// jars is the name of the jars in the cache.
func (p Program) jars() string {
	digest := sha256.Sum256([]byte(p.POM))
	return p.Name + "/" + hex.EncodeToString(digest[:])[:12]
}

// Find looks for java and for what Prepare fetched.
func (p Program) Find() (java, classpath string, err error) {
	java, err = exec.LookPath("java")
	if err != nil {
		return "", "", err
	}
	dir, err := cache.Find(p.jars())
	if err != nil {
		return "", "", fmt.Errorf("the jars of %s are missing, run `make assets`: %w", p.Name, err)
	}
	return java, filepath.Join(dir, "*"), nil
}

func (p Program) fetch(ctx context.Context, dir string) error {
	mvn, err := exec.LookPath("mvn")
	if err != nil {
		return err
	}
	project, err := os.MkdirTemp("", "kubeferry-maven-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(project) }()
	if err := os.WriteFile(filepath.Join(project, "pom.xml"), []byte(p.POM), 0o600); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, mvn, "--quiet", "--batch-mode", "dependency:copy-dependencies", "-DoutputDirectory="+dir)
	cmd.Dir = project
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("mvn: %w: %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}
