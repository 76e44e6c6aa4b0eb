package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// sender gathers lines into requests. One goroutine reads, one posts, and two buffers go back and forth.
type sender struct {
	url    string
	batch  int
	linger time.Duration

	mu      sync.Mutex // guards what follows
	filling *buffer
	// due is set if the linger ended in the middle of a line: the buffer goes with the line's end.
	due   bool
	timer *time.Timer
	full  chan *buffer
	empty chan *buffer
}

// buffer is one request's lines.
type buffer struct {
	lines int
	bytes []byte
}

func newSender(url string, batch int, linger time.Duration) *sender {
	s := &sender{url: url, batch: batch, linger: linger, full: make(chan *buffer, 1), empty: make(chan *buffer, 2)}
	s.filling = &buffer{}
	s.empty <- &buffer{}
	s.timer = time.AfterFunc(time.Hour, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.hand()
	})
	return s
}

// copy posts the stream's lines until it ends, which is an error: a watch has no end.
func (s *sender) copy(ctx context.Context, stream io.Reader, client *http.Client) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var posting sync.WaitGroup
	defer posting.Wait()
	posting.Go(func() {
		for b := range s.full {
			if ctx.Err() == nil {
				if err := post(ctx, client, s.url, b.bytes); err != nil {
					cancel(err)
				}
			}
			b.lines, b.bytes = 0, b.bytes[:0]
			s.empty <- b
		}
	})
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.timer.Stop()
		s.hand()
		close(s.full)
	}()
	lines := bufio.NewReaderSize(stream, 64<<10)
	for ctx.Err() == nil {
		piece, err := lines.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return fmt.Errorf("the watch ended: %w", err)
		}
		s.add(piece, err == nil)
	}
	return context.Cause(ctx)
}

// add appends a piece of a line.
func (s *sender) add(piece []byte, ends bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.filling.bytes = append(s.filling.bytes, piece...)
	if !ends {
		return
	}
	s.filling.lines++
	switch {
	case s.due || s.filling.lines == s.batch:
		s.hand()
	case s.filling.lines == 1:
		s.timer.Reset(s.linger)
	}
}

// hand gives the buffer to the posting goroutine if it holds whole lines. The caller holds s.mu, so that the reader waits
// while both buffers are full.
func (s *sender) hand() {
	if s.filling.lines == 0 {
		return
	}
	if s.due = !bytes.HasSuffix(s.filling.bytes, []byte("\n")); s.due {
		return
	}
	s.full <- s.filling
	s.filling = <-s.empty
}

func post(ctx context.Context, client *http.Client, url string, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("%s answered %s", url, resp.Status)
	}
	return err
}
