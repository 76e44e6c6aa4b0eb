// Package replay sends dead letters again.
package replay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/kubeferry/kubeferry/internal/app"
	"github.com/kubeferry/kubeferry/internal/config"
	"github.com/kubeferry/kubeferry/internal/durable"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/sinks"
)

// Options are what a replay needs.
type Options struct {
	// Config is the configuration, whose pipelines name the sinks.
	Config *config.Config
	// Path is the file of the dead letters.
	Path string
	// Pipeline is the only one whose letters are sent; empty for all.
	Pipeline string
	// UserAgent names the program and its version to peers.
	UserAgent string
	// Out takes the summary.
	Out    io.Writer
	Logger *slog.Logger
}

// replay is one run of the command.
type replay struct{ Options }

const replaying = ".replaying-"

// Run sends the letters and keeps what is left. It returns an [app.FailureError].
func Run(ctx context.Context, options Options) error {
	r := &replay{options}
	aside := r.Path + replaying + time.Now().UTC().Format("20060102T150405.000000000")
	if err := os.Rename(r.Path, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &app.FailureError{Err: err}
	}
	pending, err := filepath.Glob(r.Path + replaying + "*")
	if err != nil {
		return &app.FailureError{Err: err}
	}
	pending = slices.DeleteFunc(pending, func(path string) bool { return strings.HasSuffix(path, durable.Unfinished) })
	if len(pending) == 0 {
		_, err := fmt.Fprintf(r.Out, "no dead letters in %s\n", r.Path)
		return err
	}
	slices.Sort(pending)
	var lines [][]byte
	for _, path := range pending {
		more, err := readLines(path)
		if err != nil {
			return &app.FailureError{Err: err}
		}
		lines = append(lines, more...)
	}
	opened, err := app.OpenSinks(ctx, r.Config.Sinks, "", r.UserAgent, r.Logger)
	if err != nil {
		return &app.FailureError{Err: err}
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), app.CloseTimeout)
		defer cancel()
		app.CloseSinks(closing, opened, r.Logger)
	}()
	left, delivered := r.deliver(ctx, opened, lines)
	if err := r.keep(left, pending); err != nil {
		return &app.FailureError{Err: fmt.Errorf("%w; no letter is lost, those delivered may be sent again", err)}
	}
	fmt.Fprintf(r.Out, "delivered %d dead letters, %d are left\n", delivered, len(left))
	if len(left) > 0 && r.Pipeline == "" {
		return &app.FailureError{Err: fmt.Errorf("%d dead letters could not be delivered", len(left))}
	}
	return nil
}

// deliver sends the letters one by one, in the order of the file, and returns the lines that are left: behind a
// letter that failed nothing of its object in that pipeline is sent.
func (r *replay) deliver(ctx context.Context, opened map[string]app.OpenSink, lines [][]byte) (left [][]byte, delivered int) {
	blocked := map[string]bool{}
	for n, line := range lines {
		letter, err := pipeline.DecodeLetter(line)
		if err == nil && r.Pipeline != "" && letter.Pipeline != r.Pipeline {
			left = append(left, line)
			continue
		}
		key := letter.Pipeline + " " + letter.Record.Key
		if err == nil && !blocked[key] {
			err = r.send(ctx, opened, &letter)
			if err == nil {
				delivered++
				continue
			}
			blocked[key] = true
		}
		if err != nil {
			r.Logger.Warn("a dead letter stays", "pipeline", letter.Pipeline, "id", letter.Record.ID, "line", n+1, "err", err)
		}
		left = append(left, line)
	}
	return left, delivered
}

func (r *replay) send(ctx context.Context, opened map[string]app.OpenSink, letter *pipeline.Letter) error {
	n := slices.IndexFunc(r.Config.Pipelines, func(p config.Pipeline) bool { return p.Name == letter.Pipeline })
	if n < 0 {
		return fmt.Errorf("there is no pipeline %q in the configuration", letter.Pipeline)
	}
	if len(letter.Record.Body) == 0 {
		return errors.New("it has no body: the record could not be made")
	}
	sink := opened[r.Config.Pipelines[n].Sink]
	ctx, cancel := context.WithTimeout(ctx, sink.Limits.Timeout)
	defer cancel()
	return sinks.PerRecord(sink.Deliver(ctx, []sinks.Record{replayed(letter.Record)}), 1)[0]
}

// replayed marks a record, whose maps it changes: a CloudEvent by an extension attribute, other JSON by a member, a bare object by a header.
func replayed(record sinks.Record) sinks.Record {
	record.DedupID = fmt.Sprintf("%s/replayed-%d", record.DedupID, time.Now().UnixNano())
	switch {
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

func readLines(path string) (lines [][]byte, err error) {
	data, err := os.ReadFile(path)
	for line := range bytes.Lines(data) {
		if line = bytes.TrimSpace(line); len(line) > 0 {
			lines = append(lines, line)
		}
	}
	return lines, err
}

// keep replaces the files that were moved aside by the letters that are left. They are older than what an exporter
// wrote meanwhile, and have to stay before it: so they get the old name back only if it is free.
func (r *replay) keep(left [][]byte, pending []string) error {
	if len(left) > 0 {
		if err := durable.WriteFile(pending[0], append(bytes.Join(left, []byte("\n")), '\n')); err != nil {
			return err
		}
		if err := os.Link(pending[0], r.Path); errors.Is(err, fs.ErrExist) {
			pending = pending[1:]
		} else if err != nil {
			return err
		}
	}
	for _, path := range pending {
		if err := os.Remove(path); err != nil {
			return err
		}
		_ = os.Remove(path + durable.Unfinished) // nearly always there is none
	}
	return nil
}
