package webhook

import (
	"io"
	"os"
	"sync"

	"github.com/kubeferry/kubeferry/sinks"
)

// body is the body of a request. The transport may read it beyond the call, and closes it at the end: then the buffer is
// used for another request. A request of a hundred records has 130 KB, too much garbage for each call.
type body struct {
	mu     sync.Mutex // guards what follows
	buffer *[]byte    // nil once closed
	read   int
}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// maxBuffer is the largest buffer that is kept; a larger one was made for a large object.
const maxBuffer = 2 << 20

// newBuffer returns an empty one.
func newBuffer() *[]byte {
	b := buffers.Get().(*[]byte) //nolint:forcetypeassert // as above
	*b = (*b)[:0]
	return b
}

func freeBuffer(b *[]byte) {
	if cap(*b) <= maxBuffer {
		buffers.Put(b)
	}
}

// Read implements [io.Reader].
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.buffer == nil:
		return 0, os.ErrClosed
	case b.read == len(*b.buffer):
		return 0, io.EOF
	}
	n := copy(p, (*b.buffer)[b.read:])
	b.read += n
	return n, nil
}

// Close implements [io.Closer].
func (b *body) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.buffer != nil {
		freeBuffer(b.buffer)
		b.buffer = nil
	}
	return nil
}

// appendArray appends a JSON array of the records.
func appendArray(b []byte, records []*sinks.Record) []byte {
	for i, r := range records {
		b = append(b, "[,"[min(i, 1)])
		b = append(b, r.Body...)
	}
	return append(b, ']')
}
