package starter

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/file"
	"github.com/kubeferry/kubeferry/sinks/kafka"
	"github.com/kubeferry/kubeferry/sinks/nats"
	"github.com/kubeferry/kubeferry/sinks/stdout"
	"github.com/kubeferry/kubeferry/sinks/webhook"
)

var kinds = []sinks.Kind{kafka.Kind(), nats.Kind(), webhook.Kind(), file.Kind(), stdout.Kind()}

func noCluster() (*rest.Config, error) { return nil, errors.New("no cluster") }

// The file of each kind of sink is valid, as it is and with what its comments hold.
func TestWrite(t *testing.T) {
	for sink, address := range map[string]string{
		"kafka": "localhost:9092,127.0.0.1:9093", "nats": "nats://localhost:4222", "webhook": "https://example.com/a?b=c&d", "file": t.TempDir() + `/"quoted".jsonl`, "stdout": "",
	} {
		for _, a := range []Answers{
			{Resources: []string{"v1/pods,deployments.v1.apps"}, Sink: sink, Address: address, Cluster: "c"},
			{Resources: []string{"v1/pods", "apps/v1/deployments"}, Namespaces: []string{"shop", "team-*"}, Sink: sink, Address: address, Cluster: "c", StateDir: t.TempDir()},
		} {
			text, err := Write(t.Context(), a, kinds, noCluster)
			if err != nil {
				t.Fatalf("%s: %v", sink, err)
			}
			loaded, warnings, err := config.Parse(text, "init", config.Options{Kinds: kinds})
			if err != nil || len(warnings) > 0 {
				t.Fatalf("%s: %v %v\n%s", sink, err, warnings, text)
			}
			if got := loaded.ResourceNames(); !slices.Equal(got, []string{"apps/v1/deployments", "v1/pods"}) || loaded.StateDir != a.StateDir ||
				!slices.Equal(loaded.Sources[0].Namespaces.Include, a.Namespaces) || loaded.Sinks[0].Kind != sink {
				t.Errorf("%s: got %+v", sink, loaded)
			}
			checkComments(t, string(text))
		}
	}
}

// checkComments takes the marks off the comments that hold keys.
func checkComments(t *testing.T, text string) {
	t.Helper()
	var lines []string
	for line := range strings.Lines(text) {
		if _, key, ok := strings.Cut(line, "    # "); ok && strings.HasPrefix(line, "    # ") && !strings.HasPrefix(key, "namespaces") {
			line = "    " + key
		}
		lines = append(lines, strings.Replace(line, "      # ", "      ", 1))
	}
	var tree yaml.Node
	all := strings.Join(lines, "")
	if err := yaml.Unmarshal([]byte(all), &tree); err != nil {
		t.Fatalf("%v\n%s", err, all)
	}
	_, _, err := config.Parse([]byte(all), "init", config.Options{Kinds: kinds})
	var faults config.Faults
	errors.As(err, &faults)
	for _, fault := range faults { // files that are not here, and a password without TLS, are no faults of the keys
		if strings.Contains(fault.Message, "unknown key") || strings.HasPrefix(fault.Path, "pipelines") || strings.HasPrefix(fault.Path, "sources") {
			t.Errorf("%v\n%s", fault, all)
		}
	}
}

func TestWriteRefuses(t *testing.T) {
	for want, a := range map[string]Answers{
		`--sink is "pulsar"; there are: file, kafka`:               {Resources: []string{"v1/pods"}, Sink: "pulsar", Cluster: "c"},
		"a sink nats needs --address: the servers' URLs":           {Resources: []string{"v1/pods"}, Sink: "nats", Cluster: "c"},
		"a sink stdout has no --address":                           {Resources: []string{"v1/pods"}, Sink: "stdout", Address: "x", Cluster: "c"},
		"to look up v1/pods,deploy: no cluster; or write it as":    {Resources: []string{"v1/pods", "deploy"}, Sink: "stdout", Cluster: "c"},
		"sinks[0].webhook.url: ":                                   {Resources: []string{"v1/pods"}, Sink: "webhook", Address: "nowhere", Cluster: "c"},
		"cluster: must be 1 to 128 letters":                        {Resources: []string{"v1/pods"}, Sink: "stdout", Cluster: "a b"},
		"sources[0].resources[1]: v1/pods is in this list already": {Resources: []string{"v1/pods,pods.v1"}, Sink: "stdout", Cluster: "c"},
	} {
		if text, err := Write(t.Context(), a, kinds, noCluster); err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), `"v1/pods"`, "v1/pods"), want) {
			t.Errorf("got %v, want %s\n%s", err, want, text)
		}
	}
}

func TestPrompt(t *testing.T) {
	a := Answers{Sink: "stdout"}
	var out strings.Builder
	if err := a.Prompt(strings.NewReader("v1/pods\nnats\n\nprod\n"), &out); err != nil {
		t.Fatal(err)
	}
	if a.Sink != "nats" || a.Address != "nats://nats:4222" || a.Cluster != "prod" || !slices.Equal(a.Resources, []string{"v1/pods"}) {
		t.Errorf("got %+v", a)
	}
	const want = "Resources to watch, as kubectl names them [deployments,configmaps]: Sink, one of file, kafka, nats, stdout, webhook [stdout]: " +
		"Address: the servers' URLs, as nats://nats:4222 [nats://nats:4222]: Name of this cluster, which becomes part of every id, and can never be changed later: "
	if out.String() != want {
		t.Errorf("got  %s\nwant %s", out.String(), want)
	}
	a = Answers{Sink: "stdout", Cluster: "my-cluster"}
	if err := a.Prompt(strings.NewReader(""), io.Discard); err != nil || a.Sink != "stdout" || a.Address != "" {
		t.Errorf("got %+v, %v", a, err)
	}
}
