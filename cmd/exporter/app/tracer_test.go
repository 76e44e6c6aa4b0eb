package app

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/source"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// calledLog is an empty log that calls a function when it is read.
type calledLog func()

func (l calledLog) ReadFlow(string, uint64, int) ([]delta.Entry, bool, error) {
	l()
	return nil, false, nil
}

func (calledLog) Commit() {}

// A record that becomes a dead letter during a trace is found to wait, or as a dead letter.
func TestTraceOfARecordThatDies(t *testing.T) {
	state, p, _ := runningState(t, t.TempDir(), 1<<20)
	dies := func() {
		object, err := delta.NewObject([]byte(`{"apiVersion":"v1","kind":"Thing","metadata":{"name":"o","uid":"u","resourceVersion":"5"}}`))
		if err != nil {
			t.Fatal(err)
		}
		ticket, err := p.Reserve(t.Context(), &delta.Delta{Type: delta.Added, Resource: sourcetest.Things, Watch: "w", Object: object, Observed: time.Now()}, false)
		if err != nil {
			t.Fatal(err)
		}
		p.Take(ticket)
		for deadline := time.Now().Add(20 * time.Second); p.Stats().Waiting > 0; time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("got %+v", p.Stats().Counts)
			}
		}
	}
	other := pipeline.New(pipeline.Options{Options: shape.Options{Name: "other"}, Log: calledLog(dies), Logged: delta.LogSize{Entries: 1, Next: 1}, Flows: []string{""}}, // on disk
		pipeline.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
	client, err := source.NewClient(&rest.Config{Host: sourcetest.New(t).URL}, false)
	if err != nil {
		t.Fatal(err)
	}
	traced := &tracer{
		config: &config.Config{Pipelines: []config.Pipeline{{Name: "other"}, {Name: "p"}}}, client: client,
		pipelines: []*pipeline.Pipeline{other, p}, dead: state.dead,
	}
	trace, err := traced.trace(t.Context(), delta.Ref{Resource: sourcetest.Things, Name: "o"})
	if err != nil {
		t.Fatal(err)
	}
	if got := trace.Pipelines[1]; got.State != "dead" || got.Dead != 1 {
		t.Errorf("got %+v", got)
	}
}

// An object whose custom body is null is filtered, and not delivered.
func TestTraceOfANullBody(t *testing.T) {
	object, err := delta.NewObject([]byte(`{"apiVersion":"v1","kind":"Thing","metadata":{"name":"o","uid":"u","resourceVersion":"5"}}`))
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{`null`: "filtered", `type == "ADDED" ? null : {}`: "delivered"} {
		program, err := expr.Compile(text, expr.Body)
		if err != nil {
			t.Fatal(err)
		}
		options := shape.Options{Name: "p", Format: shape.FormatCustom, Body: &shape.Body{Program: program}}
		p := pipeline.New(pipeline.Options{Options: options}, pipeline.NewMetrics(prometheus.NewRegistry()), slog.New(slog.DiscardHandler))
		one := PipelineTrace{Pipeline: "p"}
		watch := &source.WatchTrace{Has: []string{"p"}, ResourceVersion: "5", Watch: source.WatchStatus{Resource: "v1/things"}}
		traced := &tracer{config: &config.Config{Cluster: "c"}, key: []byte("0123456789abcdef")}
		if traced.judge(t.Context(), &one, watch, "", p, object); one.State != want {
			t.Errorf("%s: got %s: %s", text, one.State, one.Why)
		}
	}
}
