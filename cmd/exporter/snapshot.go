package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeferry/kubeferry/cmd/exporter/app"
	"github.com/kubeferry/kubeferry/cmd/exporter/table"
)

func newSnapshot() *cobra.Command {
	var file string
	var request app.SnapshotRequest
	command := &cobra.Command{
		Use:   "snapshot --pipeline P",
		Short: "Send what exists to one pipeline of the running kubeferry",
		Long: `snapshot makes the running kubeferry send what exists now to one pipeline. Each object is sent as ADDED with "snapshot": true, and a record
of type dev.kubeferry.snapshot ends the snapshot. Changes go on meanwhile. The command waits for the end.

It talks to kubeferry through a socket in stateDir. So run it where kubeferry runs, with kubectl exec for example.

It exits with 1 if a record became a dead letter. If you interrupt it, the snapshot goes on. If kubeferry is restarted, the snapshot begins
again.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			loaded, err := loadWithState(file)
			if err != nil {
				return err
			}
			request.StateDir = loaded.StateDir
			out := &snapshotProgress{out: command.OutOrStdout(), terminal: isTerminal(command.OutOrStdout())}
			err = app.Snapshot(command.Context(), request, out.show)
			out.list()
			if err != nil {
				return &app.FailureError{Err: errors.New(table.Line(err.Error()))} // it may name an object
			}
			return nil
		},
	}
	addConfigFlag(command, &file)
	command.Flags().StringVar(&request.Pipeline, "pipeline", "", "the pipeline that gets the snapshot")
	command.Flags().StringVar(&request.Source, "source", "", "only of this source")
	command.Flags().StringVar(&request.Resource, "resource", "", "only of this resource, by a name that kubectl takes")
	_ = command.MarkFlagRequired("pipeline") // it exists
	completeConfigured(command, &file)
	return command
}

// snapshotProgress shows at a terminal how far snapshots are, every now and then what those wait for that something holds up, and at the
// end what was sent.
type snapshotProgress struct {
	out      io.Writer
	terminal bool
	last     []app.SnapshotStatus
	waits    time.Time // when the last line with WaitsFor was written
}

func (p *snapshotProgress) show(all []app.SnapshotStatus) {
	p.last = all
	waits := slices.ContainsFunc(all, func(s app.SnapshotStatus) bool { return s.WaitsFor != "" })
	if waits && time.Since(p.waits) > time.Minute {
		p.waits = time.Now()
		p.list()
	}
	if !p.terminal {
		return
	}
	var sent uint64
	left := 0
	for _, s := range all {
		sent, left = sent+s.Sent, left+s.Left
	}
	fmt.Fprintf(p.out, "\r\x1b[K%d sent, %d left", sent, left)
}

func (p *snapshotProgress) list() {
	if p.terminal {
		fmt.Fprint(p.out, "\r\x1b[K")
	}
	for _, s := range p.last {
		progress := s.Progress()
		switch {
		case s.Missing:
			progress = "left out: the API server has no such resource"
		case s.Done && s.Complete:
			progress = fmt.Sprintf("%d sent, complete", s.Sent)
		case s.Done:
			progress = fmt.Sprintf("%d sent, not complete", s.Sent)
		}
		where := s.Resource
		if s.Namespace != "" {
			where += " in " + s.Namespace
		}
		fmt.Fprintf(p.out, "%s (source %s): %s\n", where, s.Source, table.Plain(progress)) // it may name an object
	}
}
