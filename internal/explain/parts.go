package explain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/rogpeppe/go-internal/diff"
	"gopkg.in/yaml.v3"

	"github.com/kubeferry/kubeferry/pipeline"
)

// explainedFilter is what is said of one filter.
type explainedFilter struct {
	Index     int    `json:"index"`
	Kind      string `json:"kind"`
	Condition string `json:"condition"`
	// Asked is false for filters that a run does not come to; what they would say is said all the same.
	Asked  bool            `json:"asked"`
	Passed bool            `json:"passed"`
	Error  string          `json:"error,omitempty"`
	Note   string          `json:"note,omitempty"`
	Reads  []explainedRead `json:"reads,omitempty"`
}

// explainedRead is a value that a filter looked at. A nil Value or OldValue is nothing there, "null" a null.
type explainedRead struct {
	Place    string          `json:"place"`
	Value    json.RawMessage `json:"value,omitempty"`
	OldValue json.RawMessage `json:"oldValue,omitempty"`
	Compared bool            `json:"compared,omitempty"`
}

// explainedTransform is what is said of one transform.
type explainedTransform struct {
	Index  int    `json:"index"`
	Kind   string `json:"kind"`
	Failed bool   `json:"failed,omitempty"`
	// Diff holds the lines of the object's YAML that changed, each behind "+" or "-", and some around them.
	Diff []string `json:"diff,omitempty"`
}

// explainedRecord is the record, and where it goes.
type explainedRecord struct {
	ID          string            `json:"id"`
	DedupID     string            `json:"dedupId"`
	Key         string            `json:"key"`
	Sink        string            `json:"sink"`
	Destination string            `json:"destination"`
	MessageKey  string            `json:"messageKey,omitempty"`
	ContentType string            `json:"contentType"`
	Headers     []explainedHeader `json:"headers,omitempty"`
	Bytes       int               `json:"bytes"`
	Body        json.RawMessage   `json:"body"`
}

type explainedHeader struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func explainFilters(answers []pipeline.FilterAnswer) []explainedFilter {
	var filters []explainedFilter
	for i, answer := range answers {
		filter := explainedFilter{Index: i, Kind: answer.Kind, Condition: answer.Condition, Asked: !answer.Skipped, Passed: answer.Passed, Note: answer.Note}
		if answer.Err != nil {
			filter.Error = answer.Err.Error()
		}
		for _, read := range answer.Reads {
			one := explainedRead{Place: read.Place, Compared: read.Compared}
			if read.There {
				one.Value = encoded(read.Value)
			}
			if read.WasThere {
				one.OldValue = encoded(read.Old)
			}
			filter.Reads = append(filter.Reads, one)
		}
		filters = append(filters, filter)
	}
	return filters
}

func explainTransforms(steps []pipeline.TransformStep) []explainedTransform {
	transforms := make([]explainedTransform, len(steps))
	for i, step := range steps {
		transforms[i] = explainedTransform{Index: i, Kind: step.Kind, Failed: step.Failed}
		if !step.Failed {
			transforms[i].Diff = yamlDiff(step.Before, step.After)
		}
	}
	return transforms
}

// firstRefusal says in a line which filter is in the way, and why; nothing if none is.
func firstRefusal(e pipeline.Explanation) string {
	for i, answer := range e.Filters {
		if answer.Passed {
			continue
		}
		place := fmt.Sprintf("filters[%d] %s", i, answer.Kind)
		switch {
		case e.Left && !answer.OfObject:
			continue
		case answer.Err != nil:
			return place + ": " + answer.Err.Error() + " (" + answer.Note + ")"
		case answer.Kind == "types":
			return fmt.Sprintf("%s: %v is none of %s", place, answer.Reads[0].Value, answer.Condition)
		case answer.Kind == "namespaces":
			return fmt.Sprintf("%s: %v is left out (%s)", place, answer.Reads[0].Value, answer.Condition)
		case answer.Kind == "changed":
			return place + ": no change in " + answer.Condition
		default:
			return place + " is false: " + oneLine(answer.Condition, 100)
		}
	}
	return ""
}

// yamlDiff compares two versions of an object, line by line.
func yamlDiff(before, after map[string]any) []string {
	unified := string(diff.Diff("before", yamlOf(before), "after", yamlOf(after)))
	var lines []string
	for n, line := range strings.Split(strings.TrimSuffix(unified, "\n"), "\n") {
		switch {
		case n < 3: // names that say nothing here
		case strings.HasPrefix(line, "@@"):
			if len(lines) > 0 {
				lines = append(lines, "…")
			}
		default:
			lines = append(lines, line)
		}
	}
	return lines
}

func yamlOf(object map[string]any) []byte {
	var b bytes.Buffer
	encoder := yaml.NewEncoder(&b)
	encoder.SetIndent(2)
	if err := encoder.Encode(object); err != nil { // of decoded JSON: it cannot fail
		return nil
	}
	return b.Bytes()
}

func encoded(value any) json.RawMessage {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil { // of decoded JSON: it cannot fail
		return nil
	}
	return bytes.TrimSpace(b.Bytes())
}

func writeJSON(out io.Writer, said *explained) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(said)
}

// oneLine writes text in one line of at most so many characters.
func oneLine(text string, most int) string {
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}
