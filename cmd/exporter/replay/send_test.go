package replay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/file"
)

// letter is a dead letter of an object, as it is stored.
func letter(pipeline, object string, n int, padding string) []byte {
	return fmt.Appendf(nil, `{"pipeline":%q,"sink":"out","reason":"too_large","error":"413","attempts":1,`+
		`"record":{"id":"c/u/%d/MODIFIED","key":%q,"contentType":"application/json","fields":{},"body":{"n":%d,"padding":%q}}}`,
		pipeline, n, object, n, padding)
}

// store writes dead letters into a state directory.
func store(t *testing.T, dir string, letters ...[]byte) {
	t.Helper()
	s, err := checkpoint.Open(dir, func(message string, err error) { t.Error(message, err) })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var change checkpoint.DeadLetterChange
	for n, text := range letters {
		change.Append = append(change.Append, checkpoint.DeadLetter{Seq: uint64(n), Letter: text})
	}
	if err := s.Commit(&checkpoint.Commit{DeadLetters: change}); err != nil {
		t.Fatal(err)
	}
}

// run replays what is in a state directory, and returns the summary and the lines that the sink has.
func run(t *testing.T, dir string) (summary string, lines []string, err error) {
	t.Helper()
	return runWith(t, dir, Options{Letters: io.Discard})
}

func runWith(t *testing.T, dir string, options Options) (summary string, lines []string, err error) {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out.jsonl")
	text := fmt.Sprintf("{cluster: c, stateDir: %q, sources: [{name: s, resources: [v1/pods]}], pipelines: [{name: p, sink: out}], sinks: [{name: out, file: {path: %q}}]}", dir, out)
	loaded, _, err := config.Parse([]byte(text), "config.yaml", config.Options{Kinds: []sinks.Kind{file.Kind()}})
	if err != nil {
		t.Fatal(err)
	}
	var summarized bytes.Buffer
	options.Config, options.UserAgent, options.Summary, options.Logger = loaded, "test", &summarized, slog.New(slog.DiscardHandler)
	err = Run(t.Context(), options)
	content, readErr := os.ReadFile(out)
	if readErr != nil && !errors.Is(readErr, fs.ErrNotExist) { // it is made with the first record
		t.Fatal(readErr)
	}
	return summarized.String(), strings.Fields(string(content)), err
}

// What cannot be sent holds back what is behind it for the same object, and is tried again by the next replay.
func TestReplayOfAStateDirectory(t *testing.T) {
	dir := t.TempDir()
	store(t, dir, letter("p", "a", 1, ""), letter("removed", "b", 2, ""), letter("p", "a", 3, ""), letter("removed", "b", 4, ""), []byte(`"no letter"`), letter("p", "c", 5, ""))
	summary, lines, err := run(t, dir)
	if err == nil || summary != "delivered 3 dead letters, 3 are left\n" {
		t.Errorf("got %q, %v", summary, err)
	}
	for n, want := range []string{`"n":1`, `"n":3`, `"n":5`} {
		if len(lines) != 3 || !strings.Contains(lines[n], want) || !strings.Contains(lines[n], `"replayed":true`) {
			t.Errorf("the sink has %q", lines)
			break
		}
	}
	summary, lines, err = run(t, dir)
	if err == nil || summary != "delivered 0 dead letters, 3 are left\n" || len(lines) != 0 {
		t.Errorf("got %q, %q, %v", summary, lines, err)
	}
	var discarded bytes.Buffer
	summary, _, err = runWith(t, dir, Options{Discard: true, Letters: &discarded})
	if err == nil || summary != "delivered 0 dead letters, discarded 2, 1 are left\n" {
		t.Errorf("got %q, %v", summary, err)
	}
	if want := string(letter("removed", "b", 2, "")) + "\n" + string(letter("removed", "b", 4, "")) + "\n"; discarded.String() != want {
		t.Errorf("discarded %s, want %s", &discarded, want)
	}
}

// Many large letters are read piece by piece, and all of them are delivered, once.
func TestReplayOfManyLetters(t *testing.T) {
	dir := t.TempDir()
	var letters [][]byte
	for n := range 50 {
		letters = append(letters, letter("p", fmt.Sprint(n%7), n, strings.Repeat("a", 100<<10)))
	}
	store(t, dir, letters...)
	summary, lines, err := run(t, dir)
	if err != nil || summary != "delivered 50 dead letters, 0 are left\n" || len(lines) != 50 {
		t.Errorf("got %q, %d lines, %v", summary, len(lines), err)
	}
	if summary, _, err = run(t, dir); err != nil || !strings.HasPrefix(summary, "no dead letters in ") {
		t.Errorf("got %q, %v", summary, err)
	}
}
