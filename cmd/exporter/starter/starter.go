// Package starter writes a first configuration file, with comments that list further keys.
package starter

import (
	"bufio"
	"cmp"
	"context"
	_ "embed" // the template
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/cmd/exporter/resources"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// text is the file, in which names in angle brackets stand for what depends on the answers.
//
//go:embed kubeferry.yaml.tmpl
var text string

// Answers are what the file depends on.
type Answers struct {
	Resources  []string // as kubectl names them
	Namespaces []string // none for all
	Sink       string   // a kind of sink
	Address    string   // of the sink
	Cluster    string
	StateDir   string // none if it is empty
}

// needed describes the address of a kind of sink.
var needed = map[string]string{
	"kafka":   "the brokers' addresses, as kafka-0:9092,kafka-1:9092",
	"nats":    "the servers' URLs, as nats://nats:4222",
	"webhook": "the URL, as https://hooks.example.com/kubernetes",
	"file":    "the path of the file",
	"stdout":  "",
}

// Sinks returns the kinds of sink that a file can have.
func Sinks() string { return strings.Join(slices.Sorted(maps.Keys(needed)), ", ") }

// Prompt reads answers from a person. An empty line takes what stands in brackets.
func (a *Answers) Prompt(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	prompt := func(question, preset string) string {
		if preset == "" {
			fmt.Fprintf(out, "%s: ", question)
		} else {
			fmt.Fprintf(out, "%s [%s]: ", question, preset)
		}
		lines.Scan()
		return cmp.Or(strings.TrimSpace(lines.Text()), preset)
	}
	a.Resources = []string{prompt("Resources to watch, as kubectl names them", "deployments,configmaps")}
	a.Sink = prompt("Sink, one of "+Sinks(), a.Sink)
	if needed[a.Sink] != "" && a.Address == "" {
		_, example, _ := strings.Cut(needed[a.Sink], ", as ")
		a.Address = prompt("Address: "+needed[a.Sink], cmp.Or(example, "changes.jsonl"))
	}
	a.Cluster = prompt("Name of this cluster, which becomes part of every id, and can never be changed later", a.Cluster)
	return lines.Err()
}

// Write returns the file, which is a valid configuration. Names of resources that are not whole, such as deploy, are looked up in the
// cluster that the function returns.
func Write(ctx context.Context, a Answers, kinds []sinks.Kind, cluster func() (*rest.Config, error)) ([]byte, error) {
	what, ok := needed[a.Sink]
	switch {
	case a.Cluster == "":
		return nil, errors.New("name the cluster: --cluster prod-eu-1. The name is part of every id and every record: each cluster needs its own, " +
			"and it can never be changed, since consumers would take each change for one of another cluster")
	case !ok:
		return nil, fmt.Errorf("--sink is %q; there are: %s", a.Sink, Sinks())
	case what != "" && a.Address == "":
		return nil, fmt.Errorf("a sink %s needs --address: %s", a.Sink, what)
	case what == "" && a.Address != "":
		return nil, fmt.Errorf("a sink %s has no --address", a.Sink)
	}
	var err error
	if a.Resources, err = whole(ctx, a.Resources, cluster); err != nil {
		return nil, err
	}
	var resources strings.Builder
	for _, resource := range a.Resources {
		resources.WriteString("\n      - " + resource)
	}
	stateDir, namespaces := "# stateDir: /var/lib/kubeferry", `# namespaces: {include: [shop, "team-*"]}`
	if a.StateDir != "" {
		stateDir = "stateDir: " + quoted(a.StateDir)
	}
	if len(a.Namespaces) > 0 {
		namespaces = "namespaces: {include: " + quoted(a.Namespaces) + "}"
	}
	file := []byte(strings.NewReplacer(
		"<cluster>", quoted(a.Cluster), "<stateDir>", stateDir, "<resources>", resources.String(), "<namespaces>", namespaces, "<sink>", sinkOf(a),
	).Replace(text))
	_, _, err = config.Parse(file, "init", config.Options{Kinds: kinds, AllowUnset: true})
	return file, err
}

// quoted returns JSON, which is YAML, too.
func quoted(values any) string {
	raw, err := delta.EncodeJSON(values)
	if err != nil {
		panic(err) // a text, or a list of them
	}
	return string(raw)
}

// sinkOf returns the part of the file that is the sink, with the keys that are needed most beside its address.
func sinkOf(a Answers) string {
	one, several := quoted(a.Address), quoted(strings.Split(a.Address, ","))
	switch a.Sink {
	case "kafka":
		return `kafka:
      brokers: ` + several + `
      topic: "k8s.{cluster}.{group}.{resource}"
      createTopics: true # missing ones, with the brokers' defaults
      # sasl: {mechanism: SCRAM-SHA-512, username: kubeferry, passwordFile: /etc/kubeferry/kafka/password}
      # tls: {caFile: /etc/kubeferry/kafka/ca.crt}`
	case "nats":
		return `nats:
      urls: ` + several + `
      subject: "k8s.{cluster}.{group}.{resource}.{namespace}.{name}"
      stream: {name: KUBEFERRY, create: true, maxAge: 72h, maxBytes: 10Gi} # an existing one is never changed
      # credsFile: /etc/kubeferry/nats/user.creds`
	case "webhook":
		return `webhook:
      url: ` + one + `
      # signature: {secretFile: /etc/kubeferry/hook/secret}
      # auth: {bearerTokenFile: /etc/kubeferry/hook/token}`
	case "file":
		return `file:
      path: ` + one
	}
	return "stdout: {} # a line of JSON for each change"
}

// whole returns resources as apps/v1/deployments.
func whole(ctx context.Context, names []string, cluster func() (*rest.Config, error)) (found []string, err error) {
	names = strings.Split(strings.Join(names, ","), ",")
	incomplete := slices.ContainsFunc(names, func(name string) bool {
		gvr, err := delta.ParseResource(name)
		found = append(found, delta.ResourceName(gvr))
		return err != nil
	})
	if !incomplete {
		return found, nil
	}
	connection, err := cluster()
	if err != nil {
		return nil, fmt.Errorf("to look up %s: %w; or write it as apps/v1/deployments", strings.Join(names, ","), err)
	}
	catalog, err := resources.Read(ctx, connection)
	if err != nil {
		return nil, fmt.Errorf("to look up %s: %w; or write it as apps/v1/deployments", strings.Join(names, ","), err)
	}
	served, err := catalog.Find(names)
	found = nil
	for _, s := range served {
		found = append(found, delta.ResourceName(s.GroupVersionResource))
	}
	return found, err
}
