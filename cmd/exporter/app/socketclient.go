package app

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
)

// socketClient sends requests to the kubeferry that runs on a state directory, through the socket in it.
type socketClient struct {
	path string
	http http.Client
	run  string // that returned the last answer
}

var _ StateDir = (*socketClient)(nil)

func newSocketClient(stateDir string) *socketClient {
	c := &socketClient{path: filepath.Join(stateDir, socketName)}
	c.http.Transport = &http.Transport{DialContext: c.dial}
	return c
}

func (c *socketClient) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", c.path)
}

func (c *socketClient) close() { c.http.CloseIdleConnections() }

// request sends a request, with a body unless that is nil, and decodes the answer into found unless that is nil.
func (c *socketClient) request(ctx context.Context, method, path string, query url.Values, body, found any) error {
	var content bytes.Buffer
	if body != nil {
		if err := json.NewEncoder(&content).Encode(body); err != nil {
			return err
		}
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://kubeferry"+path+"?"+query.Encode(), &content)
	if err != nil {
		return err
	}
	request.Header.Set(runHeader, c.run)
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	c.run = cmp.Or(response.Header.Get(runHeader), c.run)
	answer, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return err
	case response.StatusCode != http.StatusOK:
		return fmt.Errorf("the running kubeferry refuses: %s", bytes.TrimSpace(answer))
	case found == nil:
		return nil
	default:
		return json.Unmarshal(answer, found)
	}
}

// DeadLetters implements [StateDir].
func (c *socketClient) DeadLetters(ctx context.Context, from uint64) (letters []checkpoint.DeadLetter, err error) {
	err = c.request(ctx, http.MethodGet, deadLettersPath, url.Values{"from": {strconv.FormatUint(from, 10)}}, nil, &letters)
	return letters, err
}

// RemoveDeadLetters implements [StateDir].
func (c *socketClient) RemoveDeadLetters(ctx context.Context, seqs []uint64) error {
	return c.request(ctx, http.MethodDelete, deadLettersPath, nil, seqs, nil)
}

// DropLog implements [StateDir].
func (c *socketClient) DropLog(ctx context.Context, pipeline string) (entries uint64, err error) {
	err = c.request(ctx, http.MethodDelete, logsPath, url.Values{"pipeline": {pipeline}}, nil, &entries)
	return entries, err
}

// Summary implements [StateDir].
func (c *socketClient) Summary(ctx context.Context) (found StateSummary, err error) {
	err = c.request(ctx, http.MethodGet, statePath, nil, nil, &found)
	return found, err
}
