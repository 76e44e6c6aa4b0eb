package explain

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// palette paints text, or leaves it as it is.
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

// explainText writes what is said of objects for people: the answers first, and then the reasons.
type explainText struct {
	palette
	many, first bool // there are other objects; this is the first of them
	out         bytes.Buffer
}

// labelWidth is that of the first column: "transforms[10]".
const labelWidth = 14

func (t *explainText) write(out io.Writer, said *explained) error {
	if !t.first {
		t.line("")
	}
	o := said.Object
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + o.Name
	}
	t.line("%s %s", t.bold(strings.TrimSpace(o.Kind+" "+name)), t.dim("("+o.Resource+"), "+o.Type))
	width := 0
	for _, p := range said.Pipelines {
		width = max(width, len(p.Name))
	}
	for _, p := range said.Pipelines {
		t.line("%s %s", t.bold(p.Name+":")+strings.Repeat(" ", width-len(p.Name)), t.answer(&p))
	}
	for _, note := range said.Notes {
		t.line("%s", t.dim("note: "+note))
	}
	for _, p := range said.Pipelines {
		if t.speaks(&p) {
			t.line("")
			t.pipeline(&p)
		}
	}
	_, err := out.Write(t.out.Bytes())
	return err
}

// speaks reports whether there is more to say than the answer.
func (t *explainText) speaks(p *explainedPipeline) bool {
	several := slices.ContainsFunc(p.Sources, func(a sourceAnswer) bool { return a.hasResource }) && len(p.Sources) > 1
	return several || len(p.Notes)+len(p.Filters) > 0 || p.Record != nil || p.DeadLetter
}

func (t *explainText) answer(p *explainedPipeline) string {
	switch {
	case p.Sent:
		return t.green(p.Answer)
	case p.DeadLetter:
		return t.red(p.Answer)
	default:
		return t.yellow(p.Answer)
	}
}

func (t *explainText) line(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	t.out.WriteString(strings.TrimRight(text, " ") + "\n")
}

// item writes a line with a label before it.
func (t *explainText) item(label, format string, args ...any) {
	t.line("  %s  %s", t.dim(fmt.Sprintf("%-*s", labelWidth, label)), fmt.Sprintf(format, args...))
}

func (t *explainText) pipeline(p *explainedPipeline) {
	t.line("%s", t.bold(p.Name))
	for _, source := range p.Sources {
		said := "takes it: "
		if !source.hasResource {
			continue
		}
		if !source.Takes {
			said = "does not take it: "
		}
		t.item("source", "%s %s%s", source.Source, said, source.Why)
	}
	for _, note := range p.Notes {
		t.item("note", "%s", note)
	}
	for _, filter := range p.Filters {
		t.filter(filter)
	}
	for _, transform := range p.Transforms {
		t.transform(transform)
	}
	if p.Record != nil {
		t.record(p.Record)
	}
}

func (t *explainText) filter(f explainedFilter) {
	label := fmt.Sprintf("filters[%d]", f.Index)
	said := t.green("yes")
	switch {
	case !f.Asked:
		said = t.dim("–  ")
	case !f.Passed:
		said = t.yellow("no ")
	}
	for n, line := range strings.Split(strings.TrimSpace(f.Condition), "\n") {
		if n == 0 {
			t.item(label, "%s  %s: %s", said, f.Kind, line)
		} else {
			t.item("", "%*s%s", len("yes  ")+len(f.Kind)+2, "", line)
		}
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
		t.item("", "     %s", t.dim(fmt.Sprintf("not asked, since it is decided; it would say %s", map[bool]string{true: "yes", false: "no"}[f.Passed])))
	}
}

// maxValueText is the most characters of a value in a line; more is in the record, or in --output json.
const maxValueText = 100

func valueText(raw json.RawMessage) string {
	if raw == nil {
		return "absent"
	}
	return oneLine(string(raw), maxValueText)
}

func (t *explainText) transform(f explainedTransform) {
	label := fmt.Sprintf("transforms[%d]", f.Index)
	switch {
	case f.Failed:
		t.item(label, "%s: %s", f.Kind, t.red("failed"))
		return
	case len(f.Diff) == 0:
		t.item(label, "%s: %s", f.Kind, t.dim("nothing to change"))
		return
	}
	t.item(label, "%s", f.Kind)
	for _, line := range f.Diff {
		switch {
		case strings.HasPrefix(line, "+"):
			line = t.green(line)
		case strings.HasPrefix(line, "-"):
			line = t.red(line)
		default:
			line = t.dim(line)
		}
		t.item("", "%s", line)
	}
}

func (t *explainText) record(r *explainedRecord) {
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
	for n, header := range r.Headers {
		label := ""
		if n == 0 {
			label = "  headers"
		}
		t.item(label, "%-*s  %s", width, header.Name, header.Value)
	}
	t.line("    %s", folded(r.Body, 4))
}

// lineWidth is what a value may take to stay in one line.
const lineWidth = 110

// folded writes JSON over several lines, but for what is short enough for one; indent is that of its last line.
func folded(raw json.RawMessage, indent int) string {
	decoder := json.NewDecoder(bytes.NewReader(raw))
	opening, err := decoder.Token()
	if _, nested := opening.(json.Delim); err != nil || !nested || indent+len(raw) <= lineWidth {
		return string(raw)
	}
	var b strings.Builder
	b.WriteString(bracket(opening))
	for n := 0; decoder.More(); n++ {
		if n > 0 {
			b.WriteString(",")
		}
		b.WriteString("\n" + strings.Repeat(" ", indent+2))
		if bracket(opening) == "{" {
			name, err := decoder.Token()
			if err != nil {
				return string(raw)
			}
			b.Write(encoded(name))
			b.WriteString(": ")
		}
		var value json.RawMessage
		if decoder.Decode(&value) != nil {
			return string(raw)
		}
		b.WriteString(folded(value, indent+2))
	}
	closing, err := decoder.Token()
	if err != nil {
		return string(raw)
	}
	return b.String() + "\n" + strings.Repeat(" ", indent) + bracket(closing)
}

// bracket is the bracket that a token is.
func bracket(token json.Token) string { return fmt.Sprint(token) }
