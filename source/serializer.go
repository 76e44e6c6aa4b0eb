package source

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/delta"
)

// newSerializer makes the serializer that the dynamic client gets: watches decode into a [delta.Object], which
// keeps the server's bytes. Whatever asks for a certain type is decoded as client-go's own dynamic client does it.
func newSerializer(keepManagedFields bool) runtime.NegotiatedSerializer {
	stock := dynamic.ConfigFor(&rest.Config{}).NegotiatedSerializer.SupportedMediaTypes()[0] // JSON
	stock.StreamSerializer = &runtime.StreamSerializerInfo{
		EncodesAsText: true,
		Serializer:    frameSerializer{stock.StreamSerializer.Serializer},
		Framer:        lineFramer{stock.StreamSerializer.Framer},
	}
	stock.Serializer = objectSerializer{stock.Serializer, keepManagedFields}
	return runtime.NewSimpleNegotiatedSerializer(stock)
}

// objectSerializer decodes a single object.
type objectSerializer struct {
	runtime.Serializer
	keepManagedFields bool
}

// Decode takes ownership of data when it makes a delta.Object.
func (s objectSerializer) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if into != nil {
		return s.Serializer.Decode(data, defaults, into)
	}
	object, err := delta.NewObject(data)
	if err != nil {
		return nil, nil, err
	}
	kind := schema.FromAPIVersionAndKind(object.APIVersion(), object.Kind())
	if kind.Kind == "Status" && kind.GroupVersion() == metav1.Unversioned {
		var status metav1.Status
		err := json.Unmarshal(data, &status)
		return &status, &kind, err
	}
	if !s.keepManagedFields {
		object.CutManagedFields()
	}
	return object, &kind, nil
}

// frameSerializer decodes the frames of a watch: {"type":"ADDED","object":{…}}.
type frameSerializer struct{ runtime.Serializer }

var (
	frameStart  = []byte(`{"type":"`)
	frameMiddle = []byte(`","object":`)
)

// Decode fills a metav1.WatchEvent; its Object is a copy of a part of data, which the stream uses again. What lies
// between the frame's braces is not checked here: decoding the object does that.
func (s frameSerializer) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	event, ok := into.(*metav1.WatchEvent)
	if !ok {
		return s.Serializer.Decode(data, defaults, into)
	}
	if rest, ok := bytes.CutPrefix(data, frameStart); ok {
		eventType, object, ok := bytes.Cut(rest, frameMiddle)
		object = bytes.TrimRight(object, " \r\n")
		if ok && len(eventType) <= len("BOOKMARK") && bytes.HasSuffix(object, []byte("}")) {
			event.Type = string(eventType)
			event.Object.Raw = bytes.Clone(object[:len(object)-1])
			return event, nil, nil
		}
	}
	return event, nil, scanFrame(data, event)
}

// scanFrame decodes a frame that is not written the way Go's encoder does it.
func scanFrame(data []byte, event *metav1.WatchEvent) error {
	scanner := delta.NewScanner(data)
	err := scanner.Object(func(key []byte) (err error) {
		switch string(key) {
		case "type":
			event.Type, err = scanner.String()
		case "object":
			var value []byte
			value, err = scanner.Value()
			event.Object.Raw = bytes.Clone(value)
		default:
			err = scanner.Skip()
		}
		return err
	})
	if err == nil {
		err = scanner.End()
	}
	if err != nil {
		return fmt.Errorf("decode watch frame: %w", err)
	}
	return nil
}

// lineFramer cuts a watch's stream at its line breaks, which the API server writes after each frame and JSON
// cannot hold otherwise. The stock framer parses the JSON to find the same place.
type lineFramer struct{ runtime.Framer }

func (lineFramer) NewFrameReader(r io.ReadCloser) io.ReadCloser {
	return &lineReader{source: r, buffered: bufio.NewReaderSize(r, 16<<10)}
}

type lineReader struct {
	source   io.ReadCloser
	buffered *bufio.Reader
	rest     []byte // of a line that did not fit into the last Read
	long     []byte // holds a line that is larger than the buffer
}

// Read returns one line, or as much of it as fits together with [io.ErrShortBuffer]. A line that the end of the
// stream cuts short is dropped with [io.ErrUnexpectedEOF].
func (r *lineReader) Read(p []byte) (int, error) {
	for len(r.rest) == 0 {
		line, err := r.line()
		if err != nil {
			return 0, err
		}
		r.rest = bytes.TrimSpace(line)
	}
	n := copy(p, r.rest)
	r.rest = r.rest[n:]
	if len(r.rest) > 0 {
		return n, io.ErrShortBuffer
	}
	return n, nil
}

// line returns the next line; it is valid until the next call.
func (r *lineReader) line() ([]byte, error) {
	r.long = r.long[:0]
	for {
		piece, err := r.buffered.ReadSlice('\n')
		switch {
		case err == nil && len(r.long) == 0:
			return piece, nil
		case err == nil:
			r.long = append(r.long, piece...)
			return r.long, nil
		case errors.Is(err, bufio.ErrBufferFull):
			r.long = append(r.long, piece...)
		case errors.Is(err, io.EOF) && len(r.long)+len(bytes.TrimSpace(piece)) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}

func (r *lineReader) Close() error { return r.source.Close() }
