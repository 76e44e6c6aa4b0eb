package explain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/kubeferry/kubeferry/pipeline"
)

// textWriter writes answers for people: the answer of each pipeline first, and then the reasons.
type textWriter struct {
	palette
	out   bytes.Buffer
	later bool // an object was written before
}

// labelWidth is that of the first column: "transforms[10]".
const labelWidth = 14

func (t *textWriter) write(out io.Writer, a *answer) error {
	t.out.Reset()
	if t.later {
		t.line("")
	}
	t.later = true
	name := a.Object.Name
	if a.Object.Namespace != "" {
		name = a.Object.Namespace + "/" + name
	}
	t.line("%s %s", t.bold(strings.TrimSpace(a.Object.Kind+" "+name)), t.dim("("+a.Object.Resource+"), "+a.Object.Type))
	width := 0
	for _, p := range a.Pipelines {
		width = max(width, len(p.Name))
	}
	for _, p := range a.Pipelines {
		paint := t.yellow
		switch {
		case p.Sent:
			paint = t.green
		case p.DeadLetter:
			paint = t.red
		}
		t.line("%s%*s %s", t.bold(p.Name+":"), width-len(p.Name), "", paint(p.Answer))
	}
	for _, note := range a.Notes {
		t.line("%s", t.dim("note: "+note))
	}
	for _, p := range a.Pipelines {
		if len(p.Sources) > 1 && p.hasResource() || len(p.Notes)+len(p.Filters) > 0 || p.Record != nil || p.DeadLetter {
			t.line("")
			t.pipeline(&p)
		}
	}
	_, err := out.Write(t.out.Bytes())
	return err
}

func (t *textWriter) line(format string, args ...any) {
	t.out.WriteString(strings.TrimRight(fmt.Sprintf(format, args...), " ") + "\n")
}

// item writes a line with a label before it.
func (t *textWriter) item(label, format string, args ...any) {
	t.line("  %s  %s", t.dim(fmt.Sprintf("%-*s", labelWidth, label)), fmt.Sprintf(format, args...))
}

func (t *textWriter) pipeline(p *pipelineAnswer) {
	t.line("%s", t.bold(p.Name))
	for _, source := range p.Sources {
		switch {
		case !source.hasResource:
		case source.Takes:
			t.item("source", "%s takes it: %s", source.Source, source.Why)
		default:
			t.item("source", "%s does not take it: %s", source.Source, source.Why)
		}
	}
	for _, note := range p.Notes {
		t.item("note", "%s", note)
	}
	for i := range p.Filters {
		t.filter(&p.Filters[i])
	}
	for i := range p.Transforms {
		t.transform(&p.Transforms[i])
	}
	if p.Record != nil {
		t.record(p.Record)
	}
}

func (t *textWriter) filter(f *pipeline.FilterAnswer) {
	answer := t.green("yes")
	switch {
	case !f.Asked:
		answer = t.dim("–  ")
	case !f.Passed:
		answer = t.yellow("no ")
	}
	condition := strings.Split(strings.TrimSpace(f.Condition), "\n")
	t.item(fmt.Sprintf("filters[%d]", f.Index), "%s  %s: %s", answer, f.Kind, condition[0])
	for _, line := range condition[1:] {
		t.item("", "%*s%s", len("yes  ")+len(f.Kind)+2, "", line)
	}
	if f.Error != "" {
		t.item("", "     %s", t.red(f.Error))
	}
	width := 0
	for _, read := range f.Reads {
		width = max(width, min(len(read.Place), 48))
	}
	for _, read := range f.Reads {
		value := valueText(read.Value)
		if read.Compared {
			value = valueText(read.OldValue) + " → " + value
		}
		t.item("", "     %-*s  %s", width, read.Place, t.dim(value))
	}
	if f.Note != "" {
		t.item("", "     %s", t.dim(f.Note))
	}
	if !f.Asked {
		t.item("", "     %s", t.dim("not asked, since it is decided; it would say "+map[bool]string{true: "yes", false: "no"}[f.Passed]))
	}
}

func valueText(raw json.RawMessage) string {
	if raw == nil {
		return "absent"
	}
	return oneLine(string(raw))
}

// oneLine writes text in one line of at most 100 characters. The rest of a value is in the record.
func oneLine(text string) string {
	const most = 100
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return text
}

func (t *textWriter) transform(a *transformAnswer) {
	label, kind := fmt.Sprintf("transforms[%d]", a.Index), a.Kind
	switch {
	case a.Failed:
		kind += ": " + t.red("failed")
	case len(a.Diff) == 0:
		kind += ": " + t.dim("nothing to change")
	}
	t.item(label, "%s", kind)
	for _, line := range a.Diff {
		paint := t.dim
		switch line[0] {
		case '+':
			paint = t.green
		case '-':
			paint = t.red
		}
		t.item("", "%s", paint(line))
	}
}

func (t *textWriter) record(r *record) {
	t.item("record", "%s", r.ID)
	t.item("  key", "%s", r.Key)
	t.item("  to", "%s %s", r.Destination, t.dim(fmt.Sprintf("(sink %s, %d bytes)", r.Sink, r.Bytes)))
	if r.MessageKey != r.Key && r.MessageKey != "" {
		t.item("  message key", "%s", r.MessageKey)
	}
	if len(r.Headers) == 0 {
		t.item("  content type", "%s", r.ContentType)
	}
	width := 0
	for _, header := range r.Headers {
		width = max(width, len(header.Name))
	}
	label := "  headers"
	for _, header := range r.Headers {
		t.item(label, "%-*s  %s", width, header.Name, header.Value)
		label = ""
	}
	var body bytes.Buffer
	if json.Indent(&body, r.Body, "    ", "  ") != nil { // a sink's own format
		body.Write(r.Body)
	}
	t.line("    %s", body.String())
}

// palette paints text for a terminal, or leaves it as it is.
type palette bool

func (p palette) paint(code, text string) string {
	if !p || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}

func (p palette) bold(text string) string   { return p.paint("1", text) }
func (p palette) dim(text string) string    { return p.paint("2", text) }
func (p palette) red(text string) string    { return p.paint("31", text) }
func (p palette) green(text string) string  { return p.paint("32", text) }
func (p palette) yellow(text string) string { return p.paint("33", text) }
