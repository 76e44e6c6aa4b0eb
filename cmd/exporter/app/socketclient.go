package app

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
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

func newSocketClient(stateDir string) *socketClient {
	c := &socketClient{path: filepath.Join(stateDir, socketName)}
	c.http.Transport = &http.Transport{DialContext: c.dial}
	return c
}

func (c *socketClient) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", c.path)
}

func (c *socketClient) close() { c.http.CloseIdleConnections() }

// request returns the body of the response; another status than 200 is an error.
func (c *socketClient) request(ctx context.Context, method, path string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://kubeferry"+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set(runHeader, c.run)
	response, err := c.http.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	c.run = cmp.Or(response.Header.Get(runHeader), c.run)
	content, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("the running kubeferry returned %s: %s", response.Status, bytes.TrimSpace(content))
	}
	return content, err
}

// withState calls atSocket if a kubeferry runs on a state directory, and else atFile with the file in it. report takes what is wrong with
// the file.
func withState(ctx context.Context, stateDir string, report func(message string, err error),
	atSocket func(*socketClient) error, atFile func(*checkpoint.Store) error,
) error {
	client := newSocketClient(stateDir)
	defer client.close()
	if connection, err := client.dial(ctx, "", ""); err == nil {
		_ = connection.Close()
		return atSocket(client)
	}
	if _, err := os.Stat(stateDir); err != nil { // it is not made for nothing
		return err
	}
	store, err := checkpoint.Open(stateDir, report)
	if err != nil {
		return err
	}
	return errors.Join(atFile(store), store.Close())
}

// DeadLetterStore is the dead letters of a state directory.
type DeadLetterStore interface {
	// Read returns some dead letters from a number on, in order; none at their end.
	Read(ctx context.Context, from uint64) ([]checkpoint.DeadLetter, error)
	Remove(ctx context.Context, seqs []uint64) error
}

// WithDeadLetters calls use with the dead letters of a state directory: those of the kubeferry that runs on it, or those in the file.
func WithDeadLetters(ctx context.Context, stateDir string, report func(message string, err error), use func(DeadLetterStore) error) error {
	return withState(ctx, stateDir, report,
		func(c *socketClient) error { return use(lettersAtSocket{c}) },
		func(s *checkpoint.Store) error { return use(lettersInFile{s}) })
}

type lettersInFile struct{ *checkpoint.Store }

func (l lettersInFile) Read(_ context.Context, from uint64) ([]checkpoint.DeadLetter, error) {
	return l.ReadDeadLetters(from, deadLetterChunk)
}

func (l lettersInFile) Remove(_ context.Context, seqs []uint64) error {
	return l.Commit(&checkpoint.Commit{DeadLetters: checkpoint.DeadLetterChange{Remove: seqs}})
}

type lettersAtSocket struct{ *socketClient }

func (l lettersAtSocket) Read(ctx context.Context, from uint64) (letters []checkpoint.DeadLetter, err error) {
	answer, err := l.request(ctx, http.MethodGet, deadLettersPath+"?from="+strconv.FormatUint(from, 10), nil)
	if err != nil {
		return nil, err
	}
	return letters, json.Unmarshal(answer, &letters)
}

func (l lettersAtSocket) Remove(ctx context.Context, seqs []uint64) error {
	body, err := json.Marshal(seqs)
	if err != nil {
		return err
	}
	_, err = l.request(ctx, http.MethodDelete, deadLettersPath, body)
	return err
}
