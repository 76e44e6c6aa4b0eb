package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/kubeferry/kubeferry/internal/table"
)

// screen prints for people: the changes in a table, the rest between its lines.
type screen struct {
	out   io.Writer
	table *table.Table
}

var _ io.Writer = (*screen)(nil)

func newScreen(out *os.File) *screen {
	return &screen{out, table.New(out, table.Column{Name: "ID", Width: 58, Short: shortID, ShortWidth: 14})}
}

// Write prints the progress of others.
func (s *screen) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		s.say("  " + strings.TrimSuffix(line, "\n"))
	}
	return len(p), nil
}

func (s *screen) say(text string) { fmt.Fprintln(s.out, s.table.Paint(table.Dim, "demo: "+text)) }

func (s *screen) hints(address, nats, kubeconfig string) {
	fmt.Fprintf(s.out, `
  records     %s, stream %s; as the demo reads them, they follow
  metrics     curl -s http://%s/metrics | grep ^kubeferry_
  status      curl -s http://%s/status
  take part   kubectl --kubeconfig %s -n %s create configmap mine --from-literal=a=b
  end         Ctrl-C

`, nats, streamName, address, address, kubeconfig, namespace)
	s.table.Header()
}

func (s *screen) record(r *record, summary string) {
	s.table.Row(r.Time, r.Data.Type, r.object(), r.ID, summary)
}

// shortID leaves what the other columns do not show: the beginning of the uid, and the resource version.
func shortID(id string) string {
	parts := strings.Split(id, "/")
	if len(parts) < 4 {
		return id
	}
	uid, resourceVersion := parts[len(parts)-3], parts[len(parts)-2]
	return uid[:min(7, len(uid))] + "…/" + resourceVersion
}
