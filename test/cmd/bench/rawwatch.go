package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

// rawWatch notes when each change is first visible: when its line has been read, by a connection of its own.
type rawWatch struct {
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu   sync.Mutex // guards what follows
	seen map[uint64]time.Time
	err  error
}

// watchRaw begins with the next change of the collection.
func (l *lab) watchRaw(ctx context.Context, collection string) (*rawWatch, error) {
	config := rest.CopyConfig(l.config)
	config.Proxy = http.ProxyFromEnvironment // with a function set, client-go shares its connection with nobody
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &rawWatch{cancel: cancel, seen: map[uint64]time.Time{}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+collection+"?watch=1", nil)
	if err != nil {
		cancel()
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		cancel()
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		cancel()
		_ = resp.Body.Close()
		return nil, fmt.Errorf("watch %s: %s", collection, resp.Status)
	}
	w.done.Go(func() {
		defer client.CloseIdleConnections()
		defer func() { _ = resp.Body.Close() }()
		lines := bufio.NewReaderSize(resp.Body, 64<<10)
		for {
			line, err := lines.ReadSlice('\n')
			now := time.Now()
			if err != nil {
				if ctx.Err() == nil {
					w.fail(err)
				}
				return
			}
			if version, ok := versionIn(line, frames.version); ok {
				w.mu.Lock()
				w.seen[version] = now
				w.mu.Unlock()
			}
		}
	})
	return w, nil
}

func (w *rawWatch) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = fmt.Errorf("raw watch: %w", err)
}

// wait returns when n changes have been seen.
func (w *rawWatch) wait(ctx context.Context, n int) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		w.mu.Lock()
		seen, err := len(w.seen), w.err
		w.mu.Unlock()
		if err != nil || seen >= n {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), fmt.Errorf("the raw watch saw %d of %d changes", seen, n))
		}
	}
}

// stop ends the watch and returns what it saw.
func (w *rawWatch) stop() map[uint64]time.Time {
	w.cancel()
	w.done.Wait()
	return w.seen
}
