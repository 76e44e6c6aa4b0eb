package explain

import (
	"encoding/json"
	"io"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

// answer is what becomes of one object; it is what --output json writes.
type answer struct {
	Object    objectInfo       `json:"object"`
	Notes     []string         `json:"notes,omitempty"`
	Pipelines []pipelineAnswer `json:"pipelines"`
}

type objectInfo struct {
	Resource  string `json:"resource"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// Type is what happened to the object.
	Type string `json:"type"`
	// OldObjectKnown is set if the previous version is known.
	OldObjectKnown bool `json:"oldObjectKnown"`
}

// pipelineAnswer is what one pipeline makes of the object.
type pipelineAnswer struct {
	Name string `json:"pipeline"`
	// Sent is false if the change does not concern the pipeline, or becomes a dead letter.
	Sent       bool `json:"sent"`
	DeadLetter bool `json:"deadLetter,omitempty"`
	// Answer is all of it in one line.
	Answer     string               `json:"answer"`
	Notes      []string             `json:"notes,omitempty"`
	Sources    []sourceAnswer       `json:"sources,omitempty"`
	Filters    []shape.FilterAnswer `json:"filters,omitempty"`
	Transforms []transformAnswer    `json:"transforms,omitempty"`
	Record     *Record              `json:"record,omitempty"`
}

type transformAnswer struct {
	Kind   string `json:"kind"`
	Failed bool   `json:"failed,omitempty"`
	// Diff is a unified diff of the object's YAML.
	Diff []string `json:"diff,omitempty"`
}

// Record is a record that a sink would send, and where it would go.
type Record struct {
	ID          string         `json:"id"`
	DedupID     string         `json:"dedupId"`
	Key         string         `json:"key"`
	Sink        string         `json:"sink"`
	Destination string         `json:"destination"`
	MessageKey  string         `json:"messageKey,omitempty"`
	ContentType string         `json:"contentType"`
	Headers     []sinks.Header `json:"headers,omitempty"`
	Bytes       int            `json:"bytes"`
	// Body is what is sent, as a JSON string where that is no JSON.
	Body json.RawMessage `json:"body"`
	sent []byte
}

func writeJSON(out io.Writer, a *answer) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(a)
}

// encoded returns the JSON of a decoded value.
func encoded(value any) json.RawMessage {
	raw, _ := delta.EncodeJSON(value) // of decoded JSON: it cannot fail
	return raw
}
