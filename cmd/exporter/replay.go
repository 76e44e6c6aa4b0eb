package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeferry/kubeferry/internal/config"
	"github.com/kubeferry/kubeferry/internal/durable"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/sinks"
)

func newReplay() *cobra.Command {
	var file, only string
	command := &cobra.Command{
		Use:   "replay --config FILE [LETTERS.jsonl]",
		Short: "Send dead letters again",
		Long: `replay sends dead letters again through the sink of the pipeline that each came from, in order per object. The
records keep their ids; they are marked "replayed", and get fresh ids for the transport, which would otherwise take
them for duplicates.

The letters are read from the file given, by default dead.jsonl in stateDir. The file is moved aside first, so that
an exporter that runs meanwhile begins a new one; what cannot be delivered is kept for the next replay, and the exit
code is 1. After an interruption the next replay goes on with what was moved aside.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			loaded, err := loadQuietly(file)
			if err != nil {
				return err
			}
			letters := ""
			switch {
			case len(args) == 1:
				letters = args[0]
			case loaded.StateDir != "":
				letters = filepath.Join(loaded.StateDir, "dead.jsonl")
			default:
				return errors.New("there is no stateDir to find dead letters in: name the file")
			}
			r := &replay{
				config: loaded, only: only, path: letters, out: command.OutOrStdout(), progress: progress(command.ErrOrStderr()),
				logger: slog.New(slog.NewTextHandler(command.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn})),
			}
			return r.run(command.Context())
		},
	}
	addConfigFlag(command, &file)
	command.Flags().StringVar(&only, "pipeline", "", "replay the letters of this pipeline only; the others stay")
	return command
}

// progress reports where w is a terminal, and nowhere else.
func progress(w io.Writer) func(done, total int) {
	if !isTerminal(w) {
		return func(int, int) {}
	}
	return func(done, total int) {
		fmt.Fprintf(w, "\r%d of %d", done, total)
		if done == total {
			fmt.Fprintln(w)
		}
	}
}

// replay is one run of the command.
type replay struct {
	config   *config.Config
	only     string
	path     string
	out      io.Writer
	progress func(done, total int)
	logger   *slog.Logger
}

const replaying = ".replaying-"

func (r *replay) run(ctx context.Context) error {
	aside := r.path + replaying + time.Now().UTC().Format("20060102T150405.000000000")
	if err := os.Rename(r.path, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &failureError{err}
	}
	pending, err := filepath.Glob(r.path + replaying + "*")
	if err != nil {
		return &failureError{err}
	}
	pending = slices.DeleteFunc(pending, func(path string) bool { return strings.HasSuffix(path, durable.Unfinished) })
	if len(pending) == 0 {
		_, err := fmt.Fprintf(r.out, "no dead letters in %s\n", r.path)
		return err
	}
	slices.Sort(pending)
	var lines [][]byte
	for _, path := range pending {
		more, err := readLines(path)
		if err != nil {
			return &failureError{err}
		}
		lines = append(lines, more...)
	}
	opened, err := openSinks(ctx, r.config.Sinks, "", r.logger)
	if err != nil {
		return &failureError{err}
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		closeSinks(closing, opened, r.logger)
	}()
	left, delivered := r.deliver(ctx, opened, lines)
	if err := r.keep(left, pending); err != nil {
		return &failureError{fmt.Errorf("%w; no letter is lost, those delivered may be sent again", err)}
	}
	fmt.Fprintf(r.out, "delivered %d dead letters, %d are left\n", delivered, len(left))
	if len(left) > 0 && r.only == "" {
		return &failureError{fmt.Errorf("%d dead letters could not be delivered", len(left))}
	}
	return nil
}

// deliver sends the letters one by one, in the order of the file, and returns the lines that are left: behind a
// letter that failed nothing of its object in that pipeline is sent.
func (r *replay) deliver(ctx context.Context, opened map[string]openSink, lines [][]byte) (left [][]byte, delivered int) {
	blocked := map[string]bool{}
	for n, line := range lines {
		r.progress(n+1, len(lines))
		letter, err := pipeline.DecodeLetter(line)
		if err == nil && r.only != "" && letter.Pipeline != r.only {
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
			r.logger.Warn("a dead letter stays", "pipeline", letter.Pipeline, "id", letter.Record.ID, "line", n+1, "err", err)
		}
		left = append(left, line)
	}
	return left, delivered
}

func (r *replay) send(ctx context.Context, opened map[string]openSink, letter *pipeline.Letter) error {
	n := slices.IndexFunc(r.config.Pipelines, func(p config.Pipeline) bool { return p.Name == letter.Pipeline })
	if n < 0 {
		return fmt.Errorf("there is no pipeline %q in the configuration", letter.Pipeline)
	}
	if len(letter.Record.Body) == 0 {
		return errors.New("it has no body: the record could not be made")
	}
	sink := opened[r.config.Pipelines[n].Sink]
	ctx, cancel := context.WithTimeout(ctx, sink.limits.Timeout)
	defer cancel()
	return sinks.PerRecord(sink.Deliver(ctx, []sinks.Record{replayed(letter.Record)}), 1)[0]
}

// replayed marks a record: a CloudEvent by an extension attribute, other JSON by a member, a bare object by a header.
func replayed(record sinks.Record) sinks.Record {
	record.DedupID = fmt.Sprintf("%s/replayed-%d", record.DedupID, time.Now().UnixNano())
	switch {
	case record.Attributes != nil:
		record.Attributes = with(record.Attributes, "replayed", "true")
		return record
	case record.Headers["kubeferry-id"] != "":
		record.Headers = with(record.Headers, "kubeferry-replayed", "true")
		return record
	}
	if rest, ok := bytes.CutPrefix(record.Body, []byte("{")); ok {
		record.Body = append([]byte(`{"replayed":true,`), rest...)
	}
	return record
}

func with(texts map[string]string, name, value string) map[string]string {
	more := map[string]string{name: value}
	maps.Copy(more, texts)
	return more
}

func readLines(path string) ([][]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	reader := bufio.NewReader(file)
	var lines [][]byte
	for {
		line, err := reader.ReadBytes('\n')
		if line = bytes.TrimSpace(line); len(line) > 0 {
			lines = append(lines, line)
		}
		if errors.Is(err, io.EOF) {
			return lines, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", path, err)
		}
	}
}

// keep replaces the files that were moved aside by the letters that are left. They are older than what an exporter
// wrote meanwhile, and have to stay before it: so they get the old name back only if nobody has taken it.
func (r *replay) keep(left [][]byte, pending []string) error {
	if len(left) > 0 {
		if err := durable.WriteFile(pending[0], append(bytes.Join(left, []byte("\n")), '\n')); err != nil {
			return err
		}
		if err := os.Link(pending[0], r.path); errors.Is(err, fs.ErrExist) {
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
