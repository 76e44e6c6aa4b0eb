package source

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// frameBuffer is how much is read at once. With less, HTTP/2 acknowledges more often, each time with a packet.
const frameBuffer = 64 << 10

// maxFrame is the longest line that is read: twice what client-go accepts, and over ten times the largest object in etcd. A
// longer line does not come from an API server, and would fill the memory.
const maxFrame = 32 << 20

// maxKeptLine is the largest buffer for a line that is kept for the next one.
const maxKeptLine = 256 << 10

// bookmarkTimeout is how long a watch may send nothing once it, or one before it, has sent bookmarks. The API server sends one about once a
// minute, and its watch cache remembers 75 seconds in a busy cluster: a watch that is opened again by then misses nothing.
const bookmarkTimeout = 70 * time.Second

// frames decodes a watch: a stream of lines, each a frame {"type":"ADDED","object":{…}}. client-go's own decoder reads a
// frame twice and copies it three times; this one copies the object once, out of the buffer and without managedFields.
type frames struct {
	body     io.ReadCloser
	buffered *bufio.Reader
	long     []byte // holds a line that is larger than the buffer
	opened   time.Time
	// keepManagedFields leaves them in the objects.
	keepManagedFields bool
	// bookmarks is set once one has come, in an earlier watch too.
	bookmarks bool
	left      atomic.Bool // it is ended from here
}

func newFrames(body io.ReadCloser, keepManagedFields bool) *frames {
	return &frames{
		body: body, buffered: bufio.NewReaderSize(body, frameBuffer), opened: time.Now(), keepManagedFields: keepManagedFields,
	}
}

// event is what a watch sent. A bookmark's object has a resource version only.
type event struct {
	kind   watch.EventType
	object *delta.Object
}

// leave ends the watch, so that the next one begins soon.
func (f *frames) leave() {
	f.left.Store(true)
	f.Close()
}

// Close ends the request.
func (f *frames) Close() { _ = f.body.Close() }

// readError is an error of the connection, as opposed to one of the data.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

// isDisconnect reports whether an error means no more than that a stream ended.
func isDisconnect(err error) bool {
	var read *readError
	return errors.As(err, &read) && (errors.Is(read.err, errNoBookmarks) || errors.Is(read.err, io.EOF) || errors.Is(read.err, io.ErrUnexpectedEOF) ||
		utilnet.IsProbableEOF(read.err) || utilnet.IsTimeout(read.err))
}

// next waits for the next event. An ERROR of the server is an error; a line that the end of the stream cuts short is
// dropped with [io.ErrUnexpectedEOF].
func (f *frames) next() (event, error) {
	for {
		line, err := f.line()
		if err != nil {
			return event{}, err
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			e, err := f.decode(line)
			f.bookmarks = f.bookmarks || e.kind == watch.Bookmark
			if cap(f.long) > maxKeptLine { // the object is a copy, and may wait for long
				f.long = nil
			}
			return e, err
		}
	}
}

// line returns the next line; it is valid until the next call. The API server writes a line break after each frame, and
// JSON cannot hold one otherwise.
func (f *frames) line() ([]byte, error) {
	f.long = f.long[:0]
	for {
		piece, err := f.buffered.ReadSlice('\n')
		if err == nil && len(f.long) == 0 {
			return piece, nil
		}
		f.long = append(f.long, piece...)
		switch {
		case err == nil:
			return f.long, nil
		case errors.Is(err, io.EOF):
			return nil, endOfStream(f.long)
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, &readError{err}
		case len(f.long) > maxFrame:
			return nil, errTooLong
		}
	}
}

var (
	errOverdue     = errors.New("the API server did not end the watch in time: the connection may be dead")
	errNoBookmarks = errors.New("the watch sends no bookmarks any more: the connection may be dead")
)

// watchBody ends its request when it is closed, or when a read waits too long. What arrived before that read is read first,
// however late that is: a handler that blocks may take hours.
type watchBody struct {
	io.ReadCloser
	ctx    context.Context
	cancel context.CancelCauseFunc
	leave  func() // closes the connection, if it is dead
	client *Client
	frames *frames
	end    time.Time   // when the server should have ended the watch
	timer  *time.Timer // runs during a read
}

func (b *watchBody) Read(p []byte) (int, error) {
	limit, late := max(time.Until(b.end), b.client.timeout), errOverdue
	if b.frames.bookmarks && b.client.bookmark < limit {
		limit, late = b.client.bookmark, errNoBookmarks
	}
	b.timer.Reset(limit)
	n, err := b.ReadCloser.Read(p)
	b.timer.Stop()
	if err != nil && errors.Is(context.Cause(b.ctx), errOverdue) {
		err = late
		b.leave() // unless others go on with it
	}
	return n, err
}

func (b *watchBody) Close() error {
	b.cancel(nil)
	return b.ReadCloser.Close()
}

// endOfStream returns the error for the end of the stream behind a line without its end.
func endOfStream(line []byte) error {
	switch line = bytes.TrimSpace(line); {
	case len(line) == 0:
		return &readError{io.EOF}
	case line[0] != '{':
		return errForeign
	default:
		return &readError{io.ErrUnexpectedEOF}
	}
}

// errForeign is returned when the answer to a watch is something else, such as a proxy's login page.
var errForeign = errors.New("the response is not a watch stream: it does not begin with {")

var errTooLong = fmt.Errorf("a line of the watch is longer than %d MiB", maxFrame>>20)

var (
	frameStart  = []byte(`{"type":"`)
	frameMiddle = []byte(`","object":`)
)

// decode splits a frame into type and object. A frame as Go's encoder writes it is split without parsing it; parsing the object
// checks its syntax.
func (f *frames) decode(line []byte) (event, error) {
	if rest, ok := bytes.CutPrefix(line, frameStart); ok {
		eventType, object, ok := bytes.Cut(rest, frameMiddle)
		object = bytes.TrimRight(object, " \r")
		if ok && len(eventType) <= len("BOOKMARK") && bytes.HasSuffix(object, []byte("}")) {
			return f.event(eventType, object[:len(object)-1])
		}
	}
	var frame metav1.WatchEvent
	if err := json.Unmarshal(line, &frame); err != nil {
		return event{}, fmt.Errorf("decode a frame of the watch: %w", err)
	}
	return f.event([]byte(frame.Type), frame.Object.Raw)
}

// event makes an event of a frame's parts, which stay the buffer's.
func (f *frames) event(eventType, raw []byte) (event, error) {
	kind := watch.EventType(eventType)
	switch kind {
	case watch.Added, watch.Modified, watch.Deleted, watch.Bookmark:
	case watch.Error:
		return event{}, streamError(raw)
	default:
		return event{}, fmt.Errorf("a watch event of unknown type %.20q", eventType)
	}
	object, err := delta.CopyObject(raw, f.keepManagedFields)
	if err != nil {
		return event{}, fmt.Errorf("decode an object of the watch: %w", err)
	}
	if object.Kind() == "Status" && object.APIVersion() == "v1" {
		return event{}, fmt.Errorf("a watch event %s of kind Status", kind)
	}
	if kind != watch.Bookmark {
		if err := identified(object); err != nil {
			return event{}, err
		}
	}
	return event{kind: kind, object: object}, nil
}

// streamError returns the error that the server sent inside the stream.
func streamError(raw []byte) error {
	var status metav1.Status
	if err := json.Unmarshal(raw, &status); err != nil {
		return fmt.Errorf("decode an error of the watch: %w", err)
	}
	if status.Kind != "Status" {
		return fmt.Errorf("a watch event ERROR of kind %.40q", status.Kind)
	}
	return apierrors.FromObject(&status)
}
