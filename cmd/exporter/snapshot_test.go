package main

import (
	"bytes"
	"testing"

	"github.com/kubeferry/kubeferry/cmd/exporter/app"
)

// What holds a snapshot up is written where there is no terminal too, but not all the time.
func TestSnapshotShowsWhatItWaitsFor(t *testing.T) {
	var out bytes.Buffer
	progress := snapshotProgress{out: &out}
	s := app.SnapshotStatus{Source: "s", Resource: "v1/pods", Namespace: "shop", Sent: 2, Undelivered: 1}
	progress.show([]app.SnapshotStatus{s})
	s.WaitsFor = "the sink"
	progress.show([]app.SnapshotStatus{s})
	progress.show([]app.SnapshotStatus{s})
	progress.show([]app.SnapshotStatus{{Source: "s", Resource: "v1/pods", Sent: 2, Done: true, Complete: true}, {Source: "s", Resource: "v1/none", Done: true, Complete: true, Missing: true}})
	progress.list()
	want := "v1/pods in shop (source s): 2 sent, 0 left, 1 not delivered; it waits for the sink\n" +
		"v1/pods (source s): 2 sent, complete\nv1/none (source s): left out: the API server has no such resource\n"
	if got := out.String(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
