package webhook

import (
	"bytes"
	"errors"
	"io"
	"sync"
)

// content is the body of a request, in parts that belong to the caller of Deliver. The transport may read on after a request has
// ended, but not after release.
type content struct {
	mu       sync.Mutex
	parts    [][]byte
	released bool
}

var errReleased = errors.New("the request has ended")

func (c *content) release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.parts, c.released = nil, true
}

// size returns how many bytes there are. It must not be called after release.
func (c *content) size() (n int) {
	for _, part := range c.parts {
		n += len(part)
	}
	return n
}

func (c *content) reader() io.Reader { return &contentReader{content: c} }

// bytes returns the whole.
func (c *content) bytes() []byte { return bytes.Join(c.parts, nil) }

// contentReader reads a content from its beginning.
type contentReader struct {
	content  *content
	part, at int // what is read next
}

// Read implements [io.Reader]. It fills p from as many parts as that takes.
func (r *contentReader) Read(p []byte) (n int, err error) {
	r.content.mu.Lock()
	defer r.content.mu.Unlock()
	for n < len(p) && r.part < len(r.content.parts) {
		part := r.content.parts[r.part]
		copied := copy(p[n:], part[r.at:])
		n, r.at = n+copied, r.at+copied
		if r.at == len(part) {
			r.part, r.at = r.part+1, 0
		}
	}
	switch {
	case r.content.released:
		return n, errReleased
	case n == 0 && len(p) > 0:
		return 0, io.EOF
	}
	return n, nil
}
