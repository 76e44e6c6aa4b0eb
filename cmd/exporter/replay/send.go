// Package replay sends dead letters again.
package replay

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/kubeferry/kubeferry/cmd/exporter/app"
	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/sinks"
)

// Options are what a replay needs.
type Options struct {
	// Config is the configuration, whose pipelines name the sinks.
	Config *config.Config
	// Path is a file of dead letters, or - for Input; empty for those in the state directory.
	Path string
	// Input is read if Path is -.
	Input io.Reader
	// Pipeline is the only one whose letters are sent; empty for all.
	Pipeline string
	// Discard removes the letters in the state directory that no replay can send, once they are written to Letters.
	Discard bool
	// UserAgent names the program and its version to peers.
	UserAgent string
	// Letters takes the letters of a file that were not sent, and those that are discarded, a line each.
	Letters io.Writer
	// Summary takes what became of all of them.
	Summary io.Writer
	Logger  *slog.Logger
}

// replay is one run of the command.
type replay struct {
	Options
	opened map[string]app.OpenSink
	// blocked are the objects of which a letter failed: nothing behind it is sent.
	blocked              map[string]bool
	delivered, discarded int
	left, others         int // others are those left that are of another pipeline than the only one
}

// removeTimeout is how long a full disk may keep letters from being removed.
const removeTimeout = 30 * time.Second

// Run sends the letters one by one, in the order in which they were written, and keeps what is left. It returns an
// [app.FailureError].
func Run(ctx context.Context, options Options) error {
	if names := options.Config.PipelineNames(); options.Pipeline != "" && !slices.Contains(names, options.Pipeline) {
		return fmt.Errorf("--pipeline: no pipeline named %q; there are: %s", options.Pipeline, strings.Join(names, ", "))
	}
	opened, err := app.OpenSinks(ctx, options.Config.Sinks, options.UserAgent, options.Logger)
	if err != nil {
		return &app.FailureError{Err: err}
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), app.CloseTimeout)
		defer cancel()
		app.CloseSinks(closing, opened, options.Logger)
	}()
	r := &replay{Options: options, opened: opened, blocked: map[string]bool{}}
	if r.Path != "" {
		err = r.file(ctx, r.Path)
	} else {
		err = r.state(ctx)
	}
	if err != nil {
		return &app.FailureError{Err: fmt.Errorf("%w; no letter is lost, those delivered may be sent again", err)}
	}
	if r.delivered+r.discarded+r.left == 0 {
		_, err := fmt.Fprintf(r.Summary, "no dead letters in %s\n", cmp.Or(r.Path, r.Config.StateDir))
		return err
	}
	summary := fmt.Sprintf("delivered %d dead letters, %d are left\n", r.delivered, r.left)
	if r.Discard {
		summary = fmt.Sprintf("delivered %d dead letters, discarded %d, %d are left\n", r.delivered, r.discarded, r.left)
	}
	if _, err := io.WriteString(r.Summary, summary); err != nil {
		return err
	}
	if failed := r.left - r.others; failed > 0 {
		return &app.FailureError{Err: fmt.Errorf("%d dead letters could not be delivered", failed)}
	}
	return nil
}

// state sends the letters that are in the state directory.
func (r *replay) state(ctx context.Context) error {
	report := func(message string, err error) { r.Logger.Warn("the state directory", "state", message, "err", err) }
	return app.WithStateDir(ctx, r.Config.StateDir, report, func(state app.StateDir) error {
		for from := uint64(0); ; {
			read, err := state.DeadLetters(ctx, from)
			if err != nil || len(read) == 0 {
				return err
			}
			var sent []uint64
			for _, letter := range read {
				if r.deliver(ctx, letter.Letter) {
					sent = append(sent, letter.Seq)
				}
				from = letter.Seq + 1
			}
			if len(sent) == 0 {
				continue
			}
			if err := remove(ctx, state, sent); err != nil {
				return err
			}
		}
	})
}

// remove removes letters that were sent, even if ctx has ended.
func remove(ctx context.Context, state app.StateDir, sent []uint64) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	return state.RemoveDeadLetters(ctx, sent)
}

// deliver sends a letter, or discards it, and reports whether it did. If not, it stays.
func (r *replay) deliver(ctx context.Context, text []byte) bool {
	letter, err := pipeline.DecodeLetter(text)
	if r.Pipeline != "" && letter.Pipeline != r.Pipeline { // one that cannot be read is of none
		r.left++
		r.others++
		return false
	}
	key := letter.Pipeline + " " + letter.Record.Key
	if err == nil && !r.blocked[key] {
		err = r.send(ctx, &letter)
		if err == nil {
			r.delivered++
			return true
		}
		if r.Discard && errors.Is(err, errUnsendable) {
			if _, err = fmt.Fprintf(r.Letters, "%s\n", bytes.TrimSpace(text)); err == nil {
				r.discarded++
				return true
			}
		}
		r.blocked[key] = true
	}
	if err != nil {
		r.Logger.Warn("a dead letter stays", "pipeline", letter.Pipeline, "id", letter.Record.ID, "err", err)
	}
	r.left++
	return false
}

// errUnsendable means that no replay with this configuration sends a letter.
var errUnsendable = errors.New("--discard removes it")

func (r *replay) send(ctx context.Context, letter *pipeline.Letter) error {
	n := slices.IndexFunc(r.Config.Pipelines, func(p config.Pipeline) bool { return p.Name == letter.Pipeline })
	if n < 0 {
		return fmt.Errorf("there is no pipeline %q in the configuration; %w", letter.Pipeline, errUnsendable)
	}
	if len(letter.Record.Body) == 0 {
		return fmt.Errorf("it has no body: the record could not be made; `kubeferry snapshot` sends the object if it exists, and %w", errUnsendable)
	}
	sink := r.opened[r.Config.Pipelines[n].Sink]
	ctx, cancel := context.WithTimeout(ctx, sink.Limits.Timeout)
	defer cancel()
	return sinks.PerRecord(sink.Deliver(ctx, []sinks.Record{replayed(letter.Record)}), 1)[0]
}

// replayed marks a record, whose maps it changes: a CloudEvent by an extension attribute, other JSON by a member, a bare object by a header, a custom body and OTLP by nothing.
func replayed(record sinks.Record) sinks.Record {
	record.DedupID = fmt.Sprintf("%s/replayed-%d", record.DedupID, time.Now().UnixNano())
	switch {
	case record.Custom, record.OTLP:
		return record
	case record.Attributes != nil:
		record.Attributes["replayed"] = "true"
		return record
	case record.Headers["kubeferry-id"] != "":
		record.Headers["kubeferry-replayed"] = "true"
		return record
	}
	if rest, ok := bytes.CutPrefix(record.Body, []byte("{")); ok {
		record.Body = append([]byte(`{"replayed":true,`), rest...)
	}
	return record
}
