package delta

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"strconv"
	"sync/atomic"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/json"

	"github.com/kubeferry/kubeferry/internal/jsonscan"
)

// LastApplied is the annotation in which kubectl keeps a copy of the whole object. For a Secret the copy has the data too.
const LastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Object is one version of one Kubernetes object: the JSON that the API server sent, and the few fields of its
// metadata that kubeferry needs. It is immutable, and may be used by several goroutines at once.
type Object struct {
	raw    []byte
	fields fields
	// bare is the object without managedFields, once it was made.
	bare atomic.Pointer[Object]
	// redacted is what Redacted returned.
	redacted atomic.Pointer[redacted]
}

type redacted struct {
	object *Object
	by     any
}

// NewObject makes an object of its JSON, and owns the bytes from then on. Bytes that are not UTF-8 become U+FFFD, as in
// encoding/json. NewObject fails if the JSON is malformed anywhere, is not an object, or has 2 GiB or more.
func NewObject(raw []byte) (*Object, error) {
	if len(raw) > math.MaxInt32 {
		return nil, errors.New("object of 2 GiB or more")
	}
	raw = ValidUTF8(raw)
	s := jsonscan.NewScanner(raw)
	f, err := scanObject(s, raw)
	if err == nil {
		err = s.End()
	}
	if err != nil {
		return nil, err
	}
	return &Object{raw: raw, fields: f}, nil
}

// ValidUTF8 returns the text with U+FFFD in place of bytes that are not UTF-8. It returns text itself if all of it is UTF-8.
func ValidUTF8(text []byte) []byte {
	if utf8.Valid(text) {
		return text
	}
	return bytes.ToValidUTF8(text, []byte("\uFFFD"))
}

// CopyObject is [NewObject] for bytes that the caller goes on using. The copy has no managedFields, unless keepManagedFields
// is set.
func CopyObject(raw []byte, keepManagedFields bool) (*Object, error) {
	object, err := NewObject(raw)
	if err != nil {
		return nil, err
	}
	item := Item{object, object.raw, span{0, int32(len(object.raw))}} //nolint:gosec // NewObject has checked the size
	return item.Object("", "", keepManagedFields), nil
}

// Item is an object inside a longer text, such as a list.
type Item struct {
	object *Object // without its JSON; the place of managedFields is that in the text
	text   []byte
	place  span
}

// ScanItem reads the object that a scanner has reached in a text. The text must be UTF-8, and have less than 2 GiB.
func ScanItem(s *jsonscan.Scanner, text []byte) (Item, error) {
	s.Peek() // skips white space
	from := s.Offset()
	f, err := scanObject(s, text)
	return Item{&Object{fields: f}, text, span{int32(from), int32(s.Offset())}}, err //nolint:gosec // less than 2 GiB
}

// Object returns the object, with a copy of its JSON. The copy has no managedFields, unless keepManagedFields is set. An item of a list may
// lack apiVersion and kind. Then it gets the given ones. Object may be called once.
func (i Item) Object(apiVersion, kind string, keepManagedFields bool) *Object {
	f, place := &i.object.fields, i.place
	raw := make([]byte, 0, int(place.to-place.from)+len(apiVersion)+len(kind)+len(`"apiVersion":"","kind":"",`))
	if f.kind == "" && kind != "" && f.uid != "" {
		f.apiVersion, f.kind = apiVersion, kind
		raw = strconv.AppendQuote(append(raw, `{"apiVersion":`...), apiVersion)
		raw = strconv.AppendQuote(append(raw, `,"kind":`...), kind)
		raw = append(raw, ',')
		place.from++ // of the brace
	}
	switch cut := f.managed; {
	case cut.to == 0:
		raw = append(raw, i.text[place.from:place.to]...)
	case keepManagedFields:
		moved := int32(len(raw)) - place.from //nolint:gosec // some bytes
		f.managed = span{cut.from + moved, cut.to + moved}
		raw = append(raw, i.text[place.from:place.to]...)
	default:
		f.managed = span{}
		raw = append(append(raw, i.text[place.from:cut.from]...), i.text[cut.to:place.to]...)
	}
	i.object.raw = raw
	return i.object
}

// NewIdentity makes an object that has only its apiVersion, kind, name, namespace, uid and resource version.
func NewIdentity(kind schema.GroupVersionKind, namespace, name string, uid types.UID, resourceVersion string) *Object {
	type metadata struct {
		Name            string `json:"name"`
		Namespace       string `json:"namespace,omitempty"`
		UID             string `json:"uid"`
		ResourceVersion string `json:"resourceVersion"`
	}
	object := struct {
		APIVersion string   `json:"apiVersion"`
		Kind       string   `json:"kind"`
		Metadata   metadata `json:"metadata"`
	}{kind.GroupVersion().String(), kind.Kind, metadata{name, namespace, string(uid), resourceVersion}}
	raw, err := json.Marshal(object)
	if err != nil {
		panic(err) // a struct of strings
	}
	return &Object{raw: raw, fields: fields{
		apiVersion: object.APIVersion, kind: object.Kind,
		name: name, namespace: namespace, uid: string(uid), resourceVersion: resourceVersion,
	}}
}

// Identity returns the object reduced to what [NewIdentity] has.
func (o *Object) Identity() *Object {
	kind := schema.FromAPIVersionAndKind(o.APIVersion(), o.Kind())
	return NewIdentity(kind, o.Namespace(), o.Name(), o.UID(), o.ResourceVersion())
}

// WithJSON returns an object with the same identity and other JSON: what a pipeline made of the object. The JSON is not
// read, and may lack any field.
func (o *Object) WithJSON(raw []byte) *Object {
	rewritten := &Object{raw: raw, fields: o.fields}
	rewritten.fields.managed = span{}
	return rewritten
}

// JSON returns the bytes of the object. The caller must not modify them.
func (o *Object) JSON() []byte { return o.raw }

// APIVersion returns the object's apiVersion, such as "v1" or "apps/v1".
func (o *Object) APIVersion() string { return o.fields.apiVersion }

// Kind returns the object's kind, such as "Pod".
func (o *Object) Kind() string { return o.fields.kind }

// Name returns metadata.name. A name of more than 1,024 bytes is cut, and ends with a hash of the whole name.
func (o *Object) Name() string { return o.fields.name }

// Namespace returns metadata.namespace. It is empty for a cluster-scoped object.
func (o *Object) Namespace() string { return o.fields.namespace }

// UID returns metadata.uid.
func (o *Object) UID() types.UID { return types.UID(o.fields.uid) }

// ResourceVersion returns metadata.resourceVersion.
func (o *Object) ResourceVersion() string { return o.fields.resourceVersion }

// WithoutManagedFields returns the object without metadata.managedFields, or o itself if it has none. The first call
// cuts the member out of the bytes, and later calls return the same result.
func (o *Object) WithoutManagedFields() *Object {
	cut := o.fields.managed
	if cut.to == 0 {
		return o
	}
	if bare := o.bare.Load(); bare != nil {
		return bare
	}
	raw := make([]byte, 0, len(o.raw)-int(cut.to-cut.from))
	bare := o.WithJSON(append(append(raw, o.raw[:cut.from]...), o.raw[cut.to:]...))
	o.bare.Store(bare)
	return bare
}

// Redacted returns what redact makes of the object. It keeps the last result with the key by, which must be comparable and name the redactor.
// So pipelines with the same redactor share the result. An error of redact is returned, and not kept.
func (o *Object) Redacted(by any, redact func(*Object) (*Object, error)) (*Object, error) {
	if r := o.redacted.Load(); r != nil && r.by == by {
		return r.object, nil
	}
	object, err := redact(o)
	if err == nil {
		object = object.WithChangedBy(o.fields.changedBy)
		o.redacted.Store(&redacted{object, by})
	}
	return object, err
}

// Uncached returns a copy of the object that does not hold the results of [Object.WithoutManagedFields] and [Object.Redacted]. It shares the
// JSON with the object.
func (o *Object) Uncached() *Object {
	return &Object{raw: o.raw, fields: o.fields}
}

// Unstructured decodes the object. The result belongs to the caller. The error names the object, and contains none of its values.
func (o *Object) Unstructured() (*unstructured.Unstructured, error) {
	// Not its UnmarshalJSON, whose errors may hold all of the object.
	var content map[string]any
	if err := json.Unmarshal(o.raw, &content); err != nil {
		// The cause would show a value: the syntax is right, so it is a number that nothing can hold.
		return nil, fmt.Errorf("decode %s %s/%s: a value of it cannot be represented", o.Kind(), o.Namespace(), o.Name())
	}
	return &unstructured.Unstructured{Object: content}, nil
}
