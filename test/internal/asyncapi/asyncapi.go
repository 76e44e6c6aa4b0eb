// Package asyncapi checks what tests receive against docs/schema: each message has a form that asyncapi.yaml describes, with its headers, its
// key and, as in records.schema.json, its body. The receivers of webhooktest, kafkatest and natstest call it for all that they get.
package asyncapi

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kubeferry/kubeferry/test/internal/programs"
)

// Message is what a transport has.
type Message struct {
	// Headers by their names; those of HTTP in lower case.
	Headers map[string]string
	// Key is nil if there is none. Only Kafka has keys.
	Key []byte
	// Body is nil if there is none.
	Body []byte
}

// form is a message that the document describes.
type form struct {
	name        string
	contentType string // empty if the message has none
	headers     *jsonschema.Schema
	key         *jsonschema.Schema
	payload     *jsonschema.Schema
	known       map[string]bool // the headers that it names, in lower case
}

// forms are those of each channel, by its name.
var forms = sync.OnceValues(func() (map[string][]form, error) {
	document, err := Document()
	if err != nil {
		return nil, err
	}
	d := reader{document: document, compiler: jsonschema.NewCompiler()}
	d.compiler.AssertFormat()
	records, err := read("records.schema.json")
	if err != nil {
		return nil, err
	}
	delete(records, "$id") // it is found beside the document
	if err := d.compiler.AddResource("mem:///records.schema.json", records); err != nil {
		return nil, err
	}
	all := map[string][]form{}
	for channel := range d.in(document, "channels") {
		for _, name := range slices.Sorted(maps.Keys(d.in(document, "channels", channel, "messages"))) {
			all[channel] = append(all[channel], d.form(channel, name))
		}
	}
	return all, d.err
})

// Document returns asyncapi.yaml.
func Document() (map[string]any, error) { return read("asyncapi.yaml") }

// read reads a file of docs/schema, and makes it strict: for a consumer a member that is not described is one of a later version, here it is a
// fault.
func read(name string) (map[string]any, error) {
	root, err := programs.Root()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "schema", name))
	if err != nil {
		return nil, err
	}
	open := []byte("unevaluatedProperties: true")
	if strings.HasSuffix(name, ".json") {
		open = []byte(`"unevaluatedProperties": true`)
	}
	if !bytes.Contains(text, open) {
		return nil, fmt.Errorf("%s has no %s to make strict", name, open)
	}
	text = bytes.ReplaceAll(text, open, bytes.Replace(open, []byte("true"), []byte("false"), 1))
	if text, err = yaml.ToJSON(text); err != nil {
		return nil, err
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return nil, err
	}
	return document.(map[string]any), nil
}

// reader reads the document. The first fault stays in err.
type reader struct {
	document map[string]any
	compiler *jsonschema.Compiler
	err      error
}

// in reads a place of the document, through references: of "a", "b" the member b of a.
func (r *reader) in(value any, path ...string) map[string]any {
	for {
		members, _ := value.(map[string]any)
		if ref, ok := members["$ref"].(string); ok && strings.HasPrefix(ref, "#/") {
			value = r.in(r.document, strings.Split(ref[2:], "/")...)
			continue
		}
		if len(path) == 0 {
			if members == nil {
				r.fail(fmt.Errorf("the document has not what is referred to: %v", value))
			}
			return members
		}
		value, path = members[path[0]], path[1:]
	}
}

func (r *reader) fail(err error) {
	if r.err == nil {
		r.err = err
	}
}

func (r *reader) form(channel, name string) form {
	m := r.in(r.document, "channels", channel, "messages", name)
	headers := map[string]any{}
	if m["headers"] != nil {
		headers = r.in(m, "headers")
	}
	f := form{name: name, known: map[string]bool{}}
	if channel != "lines" { // which have no headers
		f.contentType, _ = m["contentType"].(string)
	}
	f.headers, f.payload = r.compile(channel, name, "headers", headers), r.compile(channel, name, "payload", r.in(m, "payload", "schema"))
	if channel == "kafka" {
		f.key = r.compile(channel, name, "key", r.in(m, "bindings", "kafka", "key"))
	}
	parts, _ := headers["allOf"].([]any)
	for _, part := range append(parts, headers) {
		properties, _ := r.in(part)["properties"].(map[string]any)
		for header := range properties {
			f.known[strings.ToLower(header)] = true
		}
	}
	return f
}

func (r *reader) compile(channel, name, of string, schema map[string]any) *jsonschema.Schema {
	url := fmt.Sprintf("mem:///%s-%s-%s.json", channel, name, of)
	schema = maps.Clone(schema)
	schema["components"] = r.document["components"] // for references
	if err := r.compiler.AddResource(url, schema); err != nil {
		r.fail(err)
		return nil
	}
	compiled, err := r.compiler.Compile(url)
	if err != nil {
		r.fail(err)
	}
	return compiled
}

// Check returns the names of the forms of a channel that a message has, and an error if it has none.
func Check(channel string, m Message) (names []string, err error) {
	return check(channel, m, math.MaxInt)
}

// check is Check for the first forms that a message has, most at most.
func check(channel string, m Message, most int) (names []string, err error) {
	sum := m.sum(channel, most)
	if found, known := checked.Load(sum); known {
		return slices.Clone(found.([]string)), nil
	}
	all, err := forms()
	if err != nil {
		return nil, err
	}
	var faults []error
	for _, f := range all[channel] {
		if err := f.fits(m); err != nil {
			faults = append(faults, fault{f.name, err})
		} else if names = append(names, f.name); len(names) == most {
			break
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("%s: docs/schema has no such message: key %q, headers %q, body %.1000s: %w", channel, m.Key, m.Headers, m.Body, errors.Join(faults...))
	}
	checked.Store(sum, slices.Clone(names))
	return names, nil
}

// checked has the forms of each message that has some: tests read much again, some of it at each look.
var checked sync.Map

// sum identifies a message of a channel, and how many of its forms are looked for.
func (m *Message) sum(channel string, most int) [sha256.Size]byte {
	h := sha256.New()
	fmt.Fprintf(h, "%q %d %q %t %t", channel, most, m.Key, m.Key == nil, m.Body == nil)
	for _, name := range slices.Sorted(maps.Keys(m.Headers)) {
		fmt.Fprintf(h, " %q %q", name, m.Headers[name])
	}
	h.Write(m.Body)
	return [sha256.Size]byte(h.Sum(nil))
}

// fault is why a message has not a form. Its text is long to make, and rarely read.
type fault struct {
	form string
	err  error
}

func (f fault) Error() string { return fmt.Sprintf("it is not %s: %v", f.form, f.err) }

// Line checks a record that has lost its headers, or never had some: it is of one of these forms.
func Line(body []byte, names ...string) error {
	all, err := forms()
	if err != nil {
		return err
	}
	var faults []error
	for _, f := range all["lines"] {
		if slices.Contains(names, f.name) {
			err := f.takes(body)
			if err == nil {
				return nil
			}
			faults = append(faults, fault{f.name, err})
		}
	}
	return fmt.Errorf("docs/schema has no such record: %.1000s: %w", body, errors.Join(faults...))
}

// fits reports whether a message is as described: its content type, its headers, of which none of ours is missing in the document, its key and
// its body.
func (f *form) fits(m Message) error {
	headers := map[string]any{}
	for name, value := range m.Headers {
		headers[name] = value
		lower := strings.ToLower(name)
		if lower == "content-type" {
			headers[lower] = value
		}
		if ours := strings.HasPrefix(lower, "ce") || strings.Contains(lower, "kubeferry") || strings.HasPrefix(lower, "webhook-"); ours && !f.known[lower] {
			return fmt.Errorf("it has not declared the header %s", name)
		}
	}
	if got, _ := headers["content-type"].(string); got != f.contentType {
		return fmt.Errorf("content type %q", got)
	}
	if err := f.headers.Validate(headers); err != nil {
		return err
	}
	if f.key != nil {
		var key any
		if m.Key != nil {
			key = string(m.Key)
		}
		if err := f.key.Validate(key); err != nil {
			return fmt.Errorf("the key: %w", err)
		}
	}
	return f.takes(m.Body)
}

// taken has what was found to be right: tests receive much again, and read it again.
var taken sync.Map

// takes reports whether a body is as described.
func (f *form) takes(body []byte) error {
	type finding struct {
		name string
		sum  [sha256.Size]byte
	}
	found := finding{f.name, sha256.Sum256(body)}
	if _, known := taken.Load(found); known && body != nil {
		return nil
	}
	var value any
	if body != nil {
		var err error
		if value, err = jsonschema.UnmarshalJSON(bytes.NewReader(body)); err != nil {
			return err
		}
	}
	if err := f.payload.Validate(value); err != nil {
		return err
	}
	taken.Store(found, true)
	return nil
}

// Anything is set by packages whose tests send what is no record.
var Anything bool

// Expect fails a test unless a message has a form of its channel.
func Expect(tb testing.TB, channel string, m Message) {
	tb.Helper()
	if Anything {
		return
	}
	if _, err := check(channel, m, 1); err != nil {
		tb.Error(err)
	}
}
