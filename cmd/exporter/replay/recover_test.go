package replay

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/file"
)

// What can be read of a state file becomes dead letters that a replay takes, in order, under the ids that the changes had.
func TestRecover(t *testing.T) {
	const entries = 400
	dir := t.TempDir()
	s, err := checkpoint.Open(dir, func(message string, err error) { t.Error(message, err) })
	if err != nil {
		t.Fatal(err)
	}
	commit := checkpoint.Commit{
		Info:        &checkpoint.Info{Format: s.Info().Format, Offset: 5},
		DeadLetters: checkpoint.DeadLetterChange{Append: []checkpoint.DeadLetter{{Letter: letter("p", "/a", 1, "")}}},
	}
	random := rand.NewChaCha8([32]byte{})
	for _, name := range []string{"p", "removed"} {
		change := delta.LogChange{Pipeline: name}
		for n := range uint64(entries) {
			noise := make([]byte, 300)
			_, _ = random.Read(noise)
			object, err := delta.NewObject(fmt.Appendf(nil,
				`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"p","namespace":"ns","uid":"u","resourceVersion":"%d"},"noise":"%x"}`, n+100, noise))
			if err != nil {
				t.Fatal(err)
			}
			change.Append = append(change.Append, delta.Entry{LogKey: delta.LogKey{Seq: n}, Delta: &delta.Delta{
				Type: delta.Modified, Resource: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Object: object, Restored: 2,
			}})
		}
		commit.Logs = append(commit.Logs, change)
	}
	if err := s.Commit(&commit); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kubeferry.db")
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	loaded, _, err := config.Parse([]byte("{cluster: c, sources: [{name: s, resources: [v1/pods]}], pipelines: [{name: p, sink: out}], "+
		"sinks: [{name: out, file: {path: /out}}]}"), "config.yaml", config.Options{Kinds: []sinks.Kind{file.Kind()}})
	if err != nil {
		t.Fatal(err)
	}
	// recovered returns the letters of pipeline p, after checking that they are in order.
	recovered := func(t *testing.T, content []byte) (letters []pipeline.Letter, summary string, err error) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		var out, summarized bytes.Buffer
		err = Recover(loaded, path, &out, &summarized)
		for line := range strings.Lines(out.String()) {
			l, err := pipeline.DecodeLetter([]byte(line))
			if err != nil {
				t.Fatalf("%s: %v", line, err)
			}
			if n := len(letters); n > 0 && l.Reason == "recovered" && l.Record.ID <= letters[n-1].Record.ID {
				t.Errorf("%s comes after %s", l.Record.ID, letters[n-1].Record.ID)
			}
			letters = append(letters, l)
		}
		if left, _ := os.ReadFile(path); !bytes.Equal(left, content) {
			t.Error("the file was written")
		}
		return letters, summarized.String(), err
	}

	t.Run("whole", func(t *testing.T) {
		letters, summary, err := recovered(t, whole)
		if err == nil || !strings.Contains(err.Error(), `400 changes of a pipeline "removed"`) {
			t.Errorf("got %v", err)
		}
		if len(letters) != entries+1 || letters[0].Record.ID != "c+2/u/100/MODIFIED" || len(letters[0].Record.Body) < 600 {
			t.Errorf("got %d letters, the first %+v", len(letters), letters[0].Record)
		}
		if want := "recovered 400 undelivered changes and 1 dead letters\n"; summary != want {
			t.Errorf("got %q, want %q", summary, want)
		}
	})
	t.Run("damaged", func(t *testing.T) {
		most := 0
		for page := 2; page < len(whole)/4096; page += 7 {
			content := bytes.Clone(whole)
			for i := range 4096 {
				content[page*4096+i] = 0xff
			}
			letters, _, err := recovered(t, content)
			if len(letters) < entries+1 && err == nil {
				t.Errorf("page %d: %d letters and no error", page, len(letters))
			}
			if len(letters) < entries+1 {
				most = max(most, len(letters))
			}
		}
		if most < entries/2 {
			t.Errorf("at most %d letters were recovered of a damaged file", most)
		}
	})
	t.Run("no state file", func(t *testing.T) {
		if letters, _, err := recovered(t, make([]byte, 1<<16)); err == nil || len(letters) > 0 {
			t.Errorf("got %d letters and %v", len(letters), err)
		}
	})
}
