package main

import (
	"context"
	"fmt"
)

// events is kubeferry on the existing Events.
func events() exporter {
	return exporter{resources: []string{"v1/events"}, namespace: "backlog"}
}

// pods is kubeferry on the existing Pods.
func pods() exporter {
	return exporter{resources: []string{"v1/pods"}, namespace: "shop"}
}

// exporterSide is kubeferry delivering what exists to the webhook.
func (l *lab) exporterSide(name string, n int, e exporter) side {
	return side{name: name, run: func(ctx context.Context) (sample, error) {
		return l.backlog(ctx, cloudEvents, n*max(1, e.pipelines), func() (*subject, error) { return l.startExporter(e) })
	}}
}

func (l *lab) floorSide(n int, path string) side {
	return side{name: "floor", run: func(ctx context.Context) (sample, error) {
		return l.backlog(ctx, frames, n, func() (*subject, error) { return l.startFloor(path, false) })
	}}
}

// The targets of existing Events: times the floor's CPU time, and MiB.
const (
	eventsTarget = 2.0
	eventsMemory = 80
)

func backlogEvents(ctx context.Context, l *lab) ([]check, error) {
	n, err := l.loadEvents(ctx)
	if err != nil {
		return nil, err
	}
	of, err := l.paired(ctx, l.floorSide(n, eventsPath), l.exporterSide("kubeferry", n, events()))
	if err != nil {
		return nil, err
	}
	return backlogChecks(of, eventsTarget, eventsMemory), nil
}

func backlogPods(ctx context.Context, l *lab) ([]check, error) {
	n, err := l.loadPods(ctx)
	if err != nil {
		return nil, err
	}
	of, err := l.paired(ctx, l.floorSide(n, podsPath), l.exporterSide("kubeferry", n, pods()))
	if err != nil {
		return nil, err
	}
	return backlogChecks(of, 2.0, 120), nil
}

// backlogChecks compares the CPU time with the floor's, and the memory with a bound in MiB.
func backlogChecks(of pair, times, memory float64) []check {
	return []check{
		of.against("CPU per object, µs", cpuEach, atMost(times, fmt.Sprintf("≤ %.1f × floor", times))),
		of.bounded("peak RSS, MiB", peak, memory, fmt.Sprintf("≤ %.0f MiB", memory)),
		of.against("objects/s, all on this machine", speed, nil),
	}
}

func stateBacklog(ctx context.Context, l *lab) ([]check, error) {
	n, err := l.loadEvents(ctx)
	if err != nil {
		return nil, err
	}
	without := events()
	without.stateless = true
	of, err := l.paired(ctx, l.exporterSide("without", n, without), l.exporterSide("with", n, events()))
	if err != nil {
		return nil, err
	}
	return []check{
		of.named("without", "with").against("objects/s", speed, atLeast(0.9, "≥ 0.9 × without")),
		of.named("without", "with").against("CPU per object, µs", cpuEach, nil),
	}, nil
}

func threePipelines(ctx context.Context, l *lab) ([]check, error) {
	n, err := l.loadEvents(ctx)
	if err != nil {
		return nil, err
	}
	three := events()
	three.pipelines = 3
	of, err := l.paired(ctx, l.exporterSide("one", n, events()), l.exporterSide("three", n, three))
	if err != nil {
		return nil, err
	}
	seconds := func(s sample) float64 { return s.CPU.Seconds() }
	return []check{
		of.named("1 pipeline", "3 pipelines").against("CPU, s", seconds, atMost(1.6, "≤ 1.6 × one")),
		of.named("1 pipeline", "3 pipelines").against("peak RSS, MiB", peak, nil),
	}, nil
}
