package explain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/kubeferry/kubeferry/cmd/exporter/table"
	"github.com/kubeferry/kubeferry/pipeline/shape"
)

// textWriter writes answers for people: the answer of each pipeline first, and then the reasons.
type textWriter struct{ bytes.Buffer }

func writeText(out io.Writer, a *answer) error {
	var t textWriter
	name := a.Object.Name
	if a.Object.Namespace != "" {
		name = a.Object.Namespace + "/" + name
	}
	t.line("%s %s (%s), %s", a.Object.Kind, name, a.Object.Resource, a.Object.Type)
	width := 0
	for _, p := range a.Pipelines {
		width = max(width, len(p.Name))
	}
	for _, p := range a.Pipelines {
		t.line("%-*s %s", width+1, p.Name+":", p.Answer)
	}
	for _, note := range a.Notes {
		t.line("note: %s", note)
	}
	for _, p := range a.Pipelines {
		if len(p.Sources) > 0 {
			t.line("")
			t.pipeline(&p)
		}
	}
	_, err := out.Write(t.Bytes())
	return err
}

func (t *textWriter) line(format string, args ...any) {
	t.WriteString(strings.TrimRight(table.Plain(fmt.Sprintf(format, args...)), " ") + "\n")
}

// item writes a line with a label before it.
func (t *textWriter) item(label, format string, args ...any) {
	t.line("  %-*s  %s", len("transforms[10]"), label, fmt.Sprintf(format, args...))
}

func (t *textWriter) pipeline(p *pipelineAnswer) {
	t.line("%s", p.Name)
	for _, source := range p.Sources {
		verb := "takes it"
		if !source.Takes {
			verb = "does not take it"
		}
		t.item("source", "%s %s: %s", source.Source, verb, source.Why)
	}
	for _, note := range p.Notes {
		t.item("note", "%s", note)
	}
	for i := range p.Filters {
		t.filter(i, &p.Filters[i])
	}
	for i, transform := range p.Transforms {
		state := ""
		switch {
		case transform.Failed:
			state = ": failed"
		case len(transform.Diff) == 0:
			state = ": nothing to change"
		}
		t.item(fmt.Sprintf("transforms[%d]", i), "%s%s", transform.Kind, state)
		for _, line := range transform.Diff {
			t.item("", "%s", line)
		}
	}
	if p.Record != nil {
		t.record(p.Record)
	}
}

func (t *textWriter) filter(index int, f *shape.FilterAnswer) {
	answer := "yes"
	switch {
	case !f.Evaluated:
		answer = "–"
	case !f.Passed:
		answer = "no"
	}
	t.item(fmt.Sprintf("filters[%d]", index), "%-3s  %s: %s", answer, f.Kind, table.Line(f.Condition))
	if f.Error != "" {
		t.item("", "     %s", f.Error)
	}
	for _, read := range f.Reads {
		value := valueText(read.Value)
		if read.Compared {
			value = valueText(read.OldValue) + " → " + value
		}
		t.item("", "     %s  %s", read.Place, value)
	}
}

func valueText(raw json.RawMessage) string {
	if raw == nil {
		return "absent"
	}
	return shortened(string(raw))
}

// shortened returns text in one line of at most 100 characters. The rest of a value is in the record.
func shortened(text string) string {
	return table.Cut(table.Line(text), 100, "…")
}

func (t *textWriter) record(r *Record) {
	t.item("record", "%s", r.ID)
	t.item("  key", "%s", r.Key)
	t.item("  to", "%s (sink %s, %d bytes)", r.Destination, r.Sink, r.Bytes)
	if r.MessageKey != r.Key && r.MessageKey != "" {
		t.item("  message key", "%s", r.MessageKey)
	}
	for _, header := range r.Headers {
		t.item("  header", "%s: %s", header.Name, header.Value)
	}
	var body bytes.Buffer
	if json.Indent(&body, r.sent, "    ", "  ") != nil { // text, or a sink's own format
		body.Write(bytes.ReplaceAll(bytes.TrimSuffix(r.sent, []byte("\n")), []byte("\n"), []byte("\n    ")))
	}
	for line := range strings.Lines("    " + body.String()) {
		t.line("%s", strings.TrimSuffix(line, "\n"))
	}
}
