package webhook

import (
	"errors"
	"io"
	"sync"
)

// body is what one request carries. The transport may read it beyond the call, and gets an error then: the memory is used again.
type body struct {
	mu      sync.RWMutex
	content []byte
	over    bool
}

// pooled is the capacity up to which the memory of a body is kept for the next one.
const pooled = 1 << 20

var contents = sync.Pool{New: func() any { return new([]byte) }}

// newBody returns a body with room for size bytes.
func newBody(size int) *body {
	content := *contents.Get().(*[]byte)
	if cap(content) < size {
		content = make([]byte, 0, size)
	}
	return &body{content: content[:0]}
}

// end is called once the request is over, whether it was answered or not.
func (b *body) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	if cap(b.content) <= pooled {
		contents.Put(&b.content)
	}
}

// bodyReader reads a body from its beginning; each attempt of the transport has its own.
type bodyReader struct {
	*body
	at int
}

func (r *bodyReader) Read(p []byte) (int, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	switch {
	case r.over:
		return 0, errors.New("the request is over")
	case r.at == len(r.content):
		return 0, io.EOF
	}
	n := copy(p, r.content[r.at:])
	r.at += n
	return n, nil
}

func (r *bodyReader) Close() error { return nil }
