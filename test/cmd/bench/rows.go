package main

import "context"

// row is one line, or a few, of the table.
type row struct {
	name  string
	title string
	run   func(ctx context.Context, l *lab) ([]check, error)
}

// rows are all rows, those that need the same objects in the cluster beside each other.
func rows() []row {
	return []row{
		{name: "backlog-events", title: "60,000 existing Events of 1 KB", run: backlogEvents},
		{name: "state-backlog", title: "60,000 existing Events, with a state directory against without", run: stateBacklog},
		{name: "pipelines", title: "60,000 existing Events through 3 pipelines against 1", run: threePipelines},
		{name: "standby-backlog", title: "60,000 existing Events, a leader whose standby joins meanwhile against one alone", run: standbyBacklog},
		{name: "backlog-pods", title: "20,000 existing Pods of 7 KB, managedFields removed", run: backlogPods},
		{name: "changedby-pods", title: "the same, with changedBy in records against without", run: changedByPods},
		{name: "live", title: "creates, updates and deletes of Events as fast as the server takes them", run: live},
		{name: "state-live", title: "the same, with a state directory against without", run: stateLive},
		{name: "changedby-live", title: "the same, with changedBy in records against without", run: changedByLive},
		{name: "standby-live", title: "the same, a leader with one standby against one alone", run: standbyLive},
		{name: "standby-latency", title: "from the API server to the sink, a leader with one standby against one alone", run: standbyLatency},
		{name: "latency", title: "from a raw watch to the sink, at several rates, linger 5 ms", run: latency},
		{name: "idle", title: "100,000 known objects in 10 resources, nothing happens", run: idle},
		{name: "restart", title: "start with 100,000 known objects, 10 of them changed meanwhile", run: restart},
		{name: "million", title: "start with a checkpoint of 1,000,000 known objects", run: million},
		{name: "standby-million", title: "a standby copies 1,000,000 known objects, and takes over", run: standbyMillion},
	}
}
