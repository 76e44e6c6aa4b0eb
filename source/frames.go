package source

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// This file reads a watch: a stream of lines, each a frame {"type":"ADDED","object":{…}}. client-go's own reader decodes
// a frame twice, copies it three times and hands each event to another goroutine. Here the bytes are copied once, out of
// the buffer and without managedFields.

// frameBuffer is how much is read at once. With less, HTTP/2 acknowledges more often, each time with a packet.
const frameBuffer = 32 << 10

// maxFrame is the longest line that is read: client-go's clients refuse half of it, and etcd a tenth. What goes on beyond
// is no watch, and would be kept for ever.
const maxFrame = 32 << 20

// frames reads the frames of an open watch.
type frames struct {
	body     io.ReadCloser
	buffered *bufio.Reader
	long     []byte // holds a line that is larger than the buffer
	// keepManagedFields leaves them in the objects.
	keepManagedFields bool
}

func newFrames(body io.ReadCloser, keepManagedFields bool) *frames {
	return &frames{body: body, buffered: bufio.NewReaderSize(body, frameBuffer), keepManagedFields: keepManagedFields}
}

// readError is an error of the stream; every other one is of what it carries.
type readError struct{ err error }

func (e *readError) Error() string { return e.err.Error() }
func (e *readError) Unwrap() error { return e.err }

// next waits for the next event. An ERROR of the server is an error; a line that the end of the stream cuts short is
// dropped with [io.ErrUnexpectedEOF].
func (f *frames) next() (event, error) {
	for {
		line, err := f.line()
		if err != nil {
			return event{}, err
		}
		if line = bytes.TrimSpace(line); len(line) > 0 {
			return f.decode(line)
		}
	}
}

// line returns the next line; it is valid until the next call. The API server writes a line break after each frame, and
// JSON cannot hold one otherwise.
func (f *frames) line() ([]byte, error) {
	f.long = f.long[:0]
	for {
		piece, err := f.buffered.ReadSlice('\n')
		switch {
		case err == nil && len(f.long) == 0:
			return piece, nil
		case err == nil:
			f.long = append(f.long, piece...)
			return f.long, nil
		case errors.Is(err, bufio.ErrBufferFull) && len(f.long) > maxFrame:
			return nil, errTooLong
		case errors.Is(err, bufio.ErrBufferFull):
			f.long = append(f.long, piece...)
		case errors.Is(err, io.EOF):
			return nil, cutShort(append(f.long, piece...))
		default:
			return nil, &readError{err}
		}
	}
}

// cutShort is the error for the end of the stream behind a line without its end.
func cutShort(line []byte) error {
	switch line = bytes.TrimSpace(line); {
	case len(line) == 0:
		return &readError{io.EOF}
	case line[0] != '{':
		return errForeign
	default:
		return &readError{io.ErrUnexpectedEOF}
	}
}

// errForeign is what a page of a proxy's is, where a watch was asked for.
var errForeign = errors.New("the answer is no watch: it does not begin with {")

var errTooLong = fmt.Errorf("a line of the watch is longer than %d MiB", maxFrame>>20)

func (f *frames) close() { _ = f.body.Close() }

var (
	frameStart  = []byte(`{"type":"`)
	frameMiddle = []byte(`","object":`)
)

// decode reads a frame. What lies between its braces is checked by reading the object.
func (f *frames) decode(line []byte) (event, error) {
	if rest, ok := bytes.CutPrefix(line, frameStart); ok {
		eventType, object, ok := bytes.Cut(rest, frameMiddle)
		object = bytes.TrimRight(object, " \r")
		if ok && len(eventType) <= len("BOOKMARK") && bytes.HasSuffix(object, []byte("}")) {
			return f.event(eventType, object[:len(object)-1])
		}
	}
	eventType, object, err := scanFrame(line)
	if err != nil {
		return event{}, fmt.Errorf("decode a frame of the watch: %w", err)
	}
	return f.event(eventType, object)
}

// scanFrame reads a frame that is not written the way Go's encoder does it.
func scanFrame(line []byte) (eventType, object []byte, err error) {
	scanner := delta.NewScanner(line)
	err = scanner.Object(func(key []byte) (err error) {
		switch string(key) {
		case "type":
			var text string
			text, err = scanner.String()
			eventType = []byte(text)
		case "object":
			object, err = scanner.Value()
		default:
			err = scanner.Skip()
		}
		return err
	})
	if err == nil {
		err = scanner.End()
	}
	return eventType, object, err
}

// event makes an event of a frame's parts, which stay the buffer's.
func (f *frames) event(eventType, raw []byte) (event, error) {
	e := event{kind: kindOf(eventType)}
	if e.kind == watch.Error {
		return e, streamError(raw)
	}
	object, err := delta.CopyObject(raw, f.keepManagedFields)
	switch {
	case err != nil:
		return e, fmt.Errorf("decode an object of the watch: %w", err)
	case e.kind == "":
		return e, fmt.Errorf("a watch event of unknown type %.20q", eventType)
	case object.Kind() == "Status" && object.APIVersion() == "v1":
		return e, fmt.Errorf("a watch event %s of kind Status", e.kind)
	}
	e.object = object
	return e, nil
}

func kindOf(eventType []byte) watch.EventType {
	for _, kind := range [...]watch.EventType{watch.Added, watch.Modified, watch.Deleted, watch.Bookmark, watch.Error} {
		if string(eventType) == string(kind) {
			return kind
		}
	}
	return ""
}

// statusError is an error that the server sent inside a stream.
type statusError struct{ status metav1.Status }

func (e *statusError) Error() string         { return e.status.Message }
func (e *statusError) Status() metav1.Status { return e.status }

func streamError(raw []byte) error {
	var e statusError
	if err := json.Unmarshal(raw, &e.status); err != nil {
		return fmt.Errorf("decode an error of the watch: %w", err)
	}
	if e.status.Kind != "Status" {
		return fmt.Errorf("a watch event ERROR of kind %.40q", e.status.Kind)
	}
	return &e
}
