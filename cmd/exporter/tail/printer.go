package tail

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/cmd/exporter/explain"
	"github.com/kubeferry/kubeferry/cmd/exporter/table"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// printer is the sink: it prints, and sends nothing.
type printer struct {
	sinks.Config // none: nothing validates it

	out, err io.Writer
	output   string
	shown    *config.Sink // in whose place it is; nil for none
	writes   *sinks.Serial
	end      context.CancelCauseFunc

	table  *table.Table // writes to text
	text   bytes.Buffer
	failed bool
}

var (
	_ sinks.Config = (*printer)(nil)
	_ sinks.Sink   = (*printer)(nil)
)

// writeError is why nothing more can be printed.
type writeError struct{ error }

func (e *writeError) Unwrap() error { return e.error }

func newPrinter(o Options, shown *config.Sink, end context.CancelCauseFunc) *printer {
	to := ""
	if shown != nil {
		to = "TO"
	}
	p := &printer{
		out: o.Out, err: o.Err, output: o.Output, shown: shown, end: end,
		writes: sinks.NewSerial("print"), table: table.New(o.Out, to),
	}
	p.table.Out = &p.text
	return p
}

// header prints what comes before the first change.
func (p *printer) header() error {
	if p.output != "table" {
		return nil
	}
	p.table.Header() // into memory
	_, err := p.out.Write(p.text.Bytes())
	return err
}

// Limits implements [sinks.Config]. A reader may take its time: it may be a pager.
func (p *printer) Limits() sinks.Limits {
	return sinks.Limits{MaxRecords: 100, MaxBytes: 1 << 20, Concurrency: 1, Timeout: 24 * time.Hour}
}

// Open implements [sinks.Config].
func (p *printer) Open(context.Context, sinks.Env) (sinks.Sink, error) { return p, nil }

// Close implements [sinks.Sink].
func (p *printer) Close(context.Context) error { return nil }

// Deliver implements [sinks.Sink]. Where nothing can be printed any more the program ends, and what is left has no reader.
func (p *printer) Deliver(ctx context.Context, batch []sinks.Record) error {
	p.text.Reset()
	for i := range batch {
		if p.shown == nil && batch[i].Fields.Type == string(delta.MarkType) {
			continue // it is for consumers
		}
		if err := p.print(&batch[i]); err != nil {
			fmt.Fprintf(p.err, "%s: %v\n", batch[i].ID, err)
		}
	}
	text := bytes.Clone(p.text.Bytes())
	return p.writes.Do(ctx, func() error {
		if p.failed {
			return nil
		}
		if _, err := p.out.Write(text); err != nil {
			p.failed = true
			p.end(&writeError{err})
		}
		return nil
	})
}

func (p *printer) print(r *sinks.Record) error {
	var sent *explain.Record
	body := r.Structured()
	if p.shown != nil {
		var err error
		if sent, err = explain.NewRecord(*p.shown, r); err != nil {
			return fmt.Errorf("becomes a dead letter: %w", err)
		}
		if p.output != "table" {
			if body, err = delta.EncodeJSON(sent); err != nil {
				return err
			}
		}
	}
	if p.output == "json" {
		p.text.Write(append(body, '\n'))
		return nil
	}
	var content map[string]any
	if err := utiljson.Unmarshal(body, &content); err != nil {
		return err
	}
	if p.output == "yaml" {
		p.text.WriteString("---\n")
		encoder := yaml.NewEncoder(&p.text)
		encoder.SetIndent(2)
		return encoder.Encode(content)
	}
	to := ""
	if sent != nil {
		to = sent.Destination
	}
	return p.row(r, content, to)
}

// row prints a record of the format json.
func (p *printer) row(r *sinks.Record, content map[string]any, to string) error {
	text, _ := content["time"].(string)
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return err
	}
	object := r.Fields.Resource
	if r.Fields.Name != "" {
		object += " " + strings.TrimPrefix(r.Fields.Namespace+"/"+r.Fields.Name, "/")
	}
	p.table.Row(at, r.Fields.Type, object, to, summary(content))
	return nil
}

// summary describes a change in a line, and who made it.
func summary(content map[string]any) string {
	what := difference(content)
	managers, _ := content["changedBy"].([]any)
	if len(managers) == 0 || content["snapshot"] == true {
		return what
	}
	var names []string
	for _, m := range managers {
		manager, _ := m.(map[string]any)
		names = append(names, fmt.Sprint(manager["manager"]))
	}
	slices.Sort(names)
	return what + "; by " + strings.Join(slices.Compact(names), ", ")
}

// difference describes a change in a line.
func difference(content map[string]any) string {
	object, _ := content["object"].(map[string]any)
	old, _ := content["oldObject"].(map[string]any)
	switch {
	case content["type"] == "SNAPSHOT":
		return fmt.Sprint("was all that exists: ", content["count"])
	case content["type"] == "GAP":
		return fmt.Sprint("changes were missed: ", content["reason"])
	case old != nil:
		return table.Difference(old, object)
	case content["snapshot"] == true:
		return "exists: " + table.Describe(object)
	default:
		return table.Describe(object)
	}
}
