package main

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/kubeferry/kubeferry/cmd/exporter/table"
)

// screen prints for people: the changes in a table, the rest between its lines.
type screen struct {
	out   io.Writer
	file  *os.File // the same
	table *table.Table
}

var _ io.Writer = (*screen)(nil)

func newScreen(out *os.File) *screen {
	return &screen{out, out, table.New(out, "ID")}
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
