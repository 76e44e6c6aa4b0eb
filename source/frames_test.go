package source

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	restwatch "k8s.io/client-go/rest/watch"

	"github.com/kubeferry/kubeferry/internal/delta"
)

func reading(stream io.Reader) *frames { return newFrames(io.NopCloser(stream), false) }

func TestFrames(t *testing.T) {
	const object = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"u","resourceVersion":"1"}}`
	large := strings.Replace(object, `"name":"a"`, `"name":"`+strings.Repeat("a", 3*frameBuffer)+`"`, 1)
	tests := map[string]struct {
		stream string
		// want is the kinds, and then the error's text.
		want []string
	}{
		"as the API server writes it":  {`{"type":"ADDED","object":` + object + "}\n", []string{"ADDED", "EOF"}},
		"several":                      {strings.Repeat(`{"type":"MODIFIED","object":`+object+"}\n", 3), []string{"MODIFIED", "MODIFIED", "MODIFIED", "EOF"}},
		"empty lines between":          {"\n\r\n" + `{"type":"DELETED","object":` + object + "}\r\n \n", []string{"DELETED", "EOF"}},
		"written in another way":       {` { "object" : ` + object + ` , "more":[1], "type":"ADDED" } ` + "\n", []string{"ADDED", "EOF"}},
		"larger than the buffer":       {`{"type":"ADDED","object":` + large + "}\n" + `{"type":"BOOKMARK","object":` + object + "}\n", []string{"ADDED", "BOOKMARK", "EOF"}},
		"cut in mid-line":              {`{"type":"ADDED","object":` + object + "}\n" + `{"type":"ADDED","obj`, []string{"ADDED", "unexpected EOF"}},
		"cut before the line's end":    {`{"type":"ADDED","object":` + object + "}", []string{"unexpected EOF"}},
		"blanks to the end":            {strings.Repeat(" ", 2*frameBuffer), []string{"EOF"}},
		"malformed object":             {`{"type":"ADDED","object":{"a":}}` + "\n", []string{"malformed JSON"}},
		"malformed frame":              {`{"type":"ADDED"]` + "\n", []string{"decode a frame"}},
		"more behind the object":       {`{"type":"ADDED","object":` + object + `,"object":{}}` + "\n", []string{"unexpected data"}},
		"unknown type":                 {`{"type":"RENAMED","object":` + object + "}\n", []string{"unknown type \"RENAMED\""}},
		"no type":                      {`{"object":` + object + "}\n", []string{"unknown type"}},
		"no object":                    {`{"type":"ADDED"}` + "\n", []string{"malformed JSON at offset 0: expected '{'"}},
		"an error":                     {`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","message":"too old","reason":"Expired","code":410}}` + "\n", []string{"too old"}},
		"an error without a status":    {`{"type":"ERROR","object":` + object + "}\n", []string{"of kind \"Pod\""}},
		"an error that cannot be read": {`{"type":"ERROR","object":7}` + "\n", []string{"decode an error"}},
		"a status that is no error":    {`{"type":"ADDED","object":{"kind":"Status","apiVersion":"v1"}}` + "\n", []string{"ADDED of kind Status"}},
	}
	for name, test := range tests {
		for how, stream := range map[string]io.Reader{
			"at once": strings.NewReader(test.stream), "byte by byte": iotest.OneByteReader(strings.NewReader(test.stream)),
		} {
			t.Run(name+"/"+how, func(t *testing.T) {
				f := reading(stream)
				for _, want := range test.want[:len(test.want)-1] {
					if e, err := f.next(); err != nil || string(e.kind) != want || e.object.Kind() != "Pod" {
						t.Fatalf("got %v %v, want %s", e.kind, err, want)
					}
				}
				want := test.want[len(test.want)-1]
				if e, err := f.next(); err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("got %v %v, want the error %s", e.kind, err, want)
				}
			})
		}
	}
}

func TestStreamErrorIsTheServers(t *testing.T) {
	f := reading(strings.NewReader(`{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","message":"too old","reason":"Expired","code":410}}` + "\n"))
	_, err := f.next()
	if !apierrors.IsResourceExpired(err) {
		t.Errorf("got %#v, want an expired resource version", err)
	}
	if !isRefusal(err) {
		t.Errorf("%v is no refusal", err)
	}
}

// A line that never ends is given up, and so is its memory.
func TestEndlessLine(t *testing.T) {
	f := newFrames(&endless{bytes: []byte(`{"type":"ADDED","object":{"a":"`)}, false)
	ended := make(chan error, 1)
	go func() {
		_, err := f.next()
		ended <- err
	}()
	select {
	case err := <-ended:
		if !errors.Is(err, errTooLong) {
			t.Errorf("got %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it is still being read")
	}
}

// The API server takes objects of 10,000 levels, which encoding/json does not read inside a list.
func TestPageOfADeepObject(t *testing.T) {
	deep := `{"kind":"Thing","apiVersion":"v1","metadata":{"name":"deep","uid":"u1","resourceVersion":"1"},"spec":` + strings.Repeat("[", 9_999) + strings.Repeat("]", 9_999) + "}"
	p, err := parsePage([]byte(`{"kind":"ThingList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":[`+deep+`,{"metadata":{"name":"flat","uid":"u2","resourceVersion":"2"}}]}`), false)
	if err != nil || len(p.objects) != 2 || string(p.objects[0].JSON()) != deep || p.objects[1].Kind() != "Thing" {
		t.Errorf("got %d objects, %v", len(p.objects), err)
	}
}

// What Go makes of a list whose items are nil.
func TestPageWithoutItems(t *testing.T) {
	p, err := parsePage([]byte(`{"kind":"ThingList","apiVersion":"v1","metadata":{"resourceVersion":"5"},"items":null}`), false)
	if err != nil || p.resourceVersion != "5" || len(p.objects) > 0 {
		t.Errorf("got %+v, %v", p, err)
	}
}

// Items come without apiVersion and kind, or with them, and a proxy may have indented the list.
func TestPage(t *testing.T) {
	const list = `{"kind":"ThingList","apiVersion":"v1","metadata":{"resourceVersion":"5","continue":"more"},"items":[` +
		`{"metadata":{"name":"a","managedFields":[{"manager":"m","operation":"Update","time":"2026-01-01T00:00:00Z"}],"uid":"u1","resourceVersion":"1"},"spec":{"n":1}},` +
		`{"apiVersion":"w/v1","kind":"Widget","metadata":{"name":"b","uid":"u2","resourceVersion":"2"}}]}` + "\n"
	const managed = `"managedFields":[{"manager":"m","operation":"Update","time":"2026-01-01T00:00:00Z"}],`
	const a, b = `{"apiVersion":"v1","kind":"Thing","metadata":{"name":"a",%s"uid":"u1","resourceVersion":"1"},"spec":{"n":1}}`, `{"apiVersion":"w/v1","kind":"Widget","metadata":{"name":"b","uid":"u2","resourceVersion":"2"}}`
	var indented bytes.Buffer
	if err := json.Indent(&indented, []byte(list), "", "  "); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{list, indented.String()} {
		for keep, want := range map[bool]string{false: fmt.Sprintf(a, ""), true: fmt.Sprintf(a, managed)} {
			p, err := parsePage([]byte(text), keep)
			if err != nil || p.next != "more" || len(p.objects) != 2 {
				t.Fatalf("got %+v, %v", p, err)
			}
			first, second := p.objects[0], p.objects[1]
			if string(first.JSON()) != want || first.Kind() != "Thing" || first.APIVersion() != "v1" || string(second.JSON()) != b || second.Kind() != "Widget" {
				t.Errorf("got %s and %s", first.JSON(), second.JSON())
			}
			if bare := first.WithoutManagedFields(); string(bare.JSON()) != fmt.Sprintf(a, "") || bare.Name() != "a" {
				t.Errorf("without managedFields: %s", bare.JSON())
			}
			if d := (&delta.Delta{Type: delta.Added, Object: first}); !bytes.Contains(d.ChangedBy(), []byte(`"m"`)) {
				t.Errorf("changed by %s", d.ChangedBy())
			}
		}
	}
}

// FuzzFrames compares what is read with what encoding/json makes of the same line.
func FuzzFrames(f *testing.F) {
	for _, line := range []string{
		`{"type":"ADDED","object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","managedFields":[{"a":1}],"uid":"u"}}}`,
		`{"object":{"metadata":{"managedFields":[]}},"type":"DELETED"}`, `{"type":"ADDED","object":{}},"object":{}}`,
		`{"type":"ADDED","object":null}`, `{"type":"MODIFIED","object":{"a":"\u2028\ud800"}} `,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		if bytes.ContainsAny(line, "\n") || len(bytes.TrimSpace(line)) == 0 {
			t.Skip()
		}
		e, err := reading(bytes.NewReader(append(bytes.Clone(line), '\n'))).next()
		if err != nil {
			if errors.Is(err, io.EOF) {
				t.Fatalf("%q ends the stream", line)
			}
			return // malformed JSON must be one; what is refused beyond that is no wrong record
		}
		var frame map[string]json.RawMessage
		if err := json.Unmarshal(line, &frame); err != nil {
			t.Fatalf("%q is no JSON, and gave %s", line, e.object.JSON())
		}
		var kind watch.EventType
		var want, got map[string]any
		if err := json.Unmarshal(frame["type"], &kind); err != nil || kind != e.kind {
			t.Fatalf("%q: got %s", line, e.kind)
		}
		if err := json.Unmarshal(frame["object"], &want); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(e.object.JSON(), &got); err != nil {
			t.Fatalf("%q gave %s: %v", line, e.object.JSON(), err)
		}
		if metadata, ok := want["metadata"].(map[string]any); ok {
			delete(metadata, "managedFields")
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q gave %s", line, e.object.JSON())
		}
	})
}

// endless repeats its bytes without end.
type endless struct {
	bytes []byte
	at    int
}

func (e *endless) Read(p []byte) (int, error) {
	n := copy(p, e.bytes[e.at:])
	e.at = (e.at + n) % len(e.bytes)
	return n, nil
}

func (*endless) Close() error { return nil }

// BenchmarkFrames reads Pods off a watch, managedFields left out, and beside it what the dynamic client does with the
// same bytes.
func BenchmarkFrames(b *testing.B) {
	pod, err := os.ReadFile("testdata/pod.json")
	if err != nil {
		b.Fatal(err)
	}
	var line bytes.Buffer
	if err := json.Compact(&line, pod); err != nil {
		b.Fatal(err)
	}
	stream := endless{bytes: []byte(`{"type":"MODIFIED","object":` + line.String() + "}\n")}
	b.Run("kubeferry", func(b *testing.B) {
		b.SetBytes(int64(len(stream.bytes)))
		f := newFrames(&stream, false)
		for b.Loop() {
			if e, err := f.next(); err != nil || e.object == nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("client-go", func(b *testing.B) {
		b.SetBytes(int64(len(stream.bytes)))
		info := dynamic.ConfigFor(&rest.Config{}).NegotiatedSerializer.SupportedMediaTypes()[0]
		reader := info.StreamSerializer.NewFrameReader(&stream)
		decoder := restwatch.NewDecoder(streaming.NewDecoder(reader, info.StreamSerializer.Serializer), info.Serializer)
		for b.Loop() {
			if _, object, err := decoder.Decode(); err != nil || object == nil {
				b.Fatal(err)
			}
		}
	})
}
