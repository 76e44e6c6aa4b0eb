// Package trace shows what became of one object in a running kubeferry.
package trace

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/kubeferry/kubeferry/cmd/exporter/app"
	"github.com/kubeferry/kubeferry/cmd/exporter/table"
	"github.com/kubeferry/kubeferry/pipeline"
)

// Options are what a trace is of.
type Options struct {
	// StateDir is that of the running kubeferry.
	StateDir string
	// Resource is a name that kubectl takes, and Object NAMESPACE/NAME, or NAME.
	Resource, Object string
	// Output is text or json.
	Output string
}

// Run writes the trace. Errors at run time are of type [app.FailureError].
func Run(ctx context.Context, options Options, out io.Writer) error {
	if options.Output != "text" && options.Output != "json" {
		return fmt.Errorf("--output is %q; there are text and json", options.Output)
	}
	namespace, name, err := app.SplitObject(options.Object)
	if err != nil {
		return err
	}
	trace, err := app.RequestTrace(ctx, options.StateDir, options.Resource, namespace, name)
	if err != nil {
		return &app.FailureError{Err: err}
	}
	if options.Output == "json" {
		encoder := json.NewEncoder(out)
		encoder.SetEscapeHTML(false)
		encoder.SetIndent("", "  ")
		return encoder.Encode(trace)
	}
	return writeText(out, trace)
}

func writeText(out io.Writer, t *app.Trace) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	name := t.Name
	if t.Namespace != "" {
		name = t.Namespace + "/" + name
	}
	fmt.Fprintf(w, "%s %s\n", t.Resource, name)
	switch {
	case t.NowError != "":
		fmt.Fprintf(w, "now\tcannot be read: %s\n", table.Line(t.NowError))
	default:
		fmt.Fprintf(w, "now\t%s\n", cmp.Or(t.Now, "does not exist"))
	}
	for _, watch := range t.Watches {
		s := watch.Watch
		where := "source " + s.Source
		if s.Namespace != "" {
			where += ", namespace " + s.Namespace
		}
		fmt.Fprintf(w, "watch\t%s: %s, position %s", where, s.State, cmp.Or(s.Position, "none"))
		if !s.LastActivity.IsZero() {
			fmt.Fprintf(w, ", last heard %s", pipeline.FormatTime(s.LastActivity))
		}
		if watch.Known {
			fmt.Fprintf(w, "; has version %s", watch.ResourceVersion)
		} else {
			fmt.Fprint(w, "; does not have it")
		}
		if s.Error != "" {
			fmt.Fprintf(w, "; %s", table.Line(s.Error))
		}
		fmt.Fprintln(w)
	}
	fmt.Fprintln(w, "\nPIPELINE\tSTATE\tWHY")
	for _, p := range t.Pipelines {
		fmt.Fprintf(w, "%s\t%s\t%s\n", p.Pipeline, p.State, table.Line(p.Why))
		if f := p.Filter; f != nil {
			fmt.Fprintf(w, "\t\tfilters[%d] %s: %s\n", f.Index, f.Kind, table.Line(f.Condition))
			for _, read := range f.Reads {
				fmt.Fprintf(w, "\t\t  %s is %s\n", read.Place, cmp.Or(table.Line(string(read.Value)), "absent"))
			}
		}
		if !p.LastDelivered.IsZero() {
			fmt.Fprintf(w, "\t\tlast delivered %s\n", pipeline.FormatTime(p.LastDelivered))
		}
		if p.Waiting == nil {
			continue
		}
		for _, r := range p.Waiting.Records {
			text := fmt.Sprintf("%s %s, handed on %s", r.Type, r.ResourceVersion, pipeline.FormatTime(r.Observed))
			if r.Attempts > 0 {
				text += fmt.Sprintf(", failed %d times since %s", r.Attempts, pipeline.FormatTime(r.FirstFailure))
			}
			if r.OnDisk {
				text += ", on disk"
			}
			fmt.Fprintf(w, "\t\t  %s\n", text)
		}
		if more := p.Waiting.Total - len(p.Waiting.Records); more > 0 {
			fmt.Fprintf(w, "\t\t  and %d more\n", more)
		}
	}
	for _, note := range t.Notes {
		fmt.Fprintf(w, "note: %s\n", table.Line(note))
	}
	return w.Flush()
}
