// Package sinktest holds the one suite that every sink must pass.
//
// A sink's test provides how to start a real peer (an HTTP server, a broker, a file), how to make it fail, and how to
// read back what it has stored; [Run] does the rest:
//
//	func TestSink(t *testing.T) {
//		sinktest.Run(t, sinktest.Harness{Kind: webhook.Kind(), New: func(t *testing.T) *sinktest.Peer {
//			server := startServer(t)
//			return &sinktest.Peer{
//				Config: func() sinks.Config { … },
//				Stored: server.stored,
//				Fail:   func() { server.answer(503) },
//				Mend:   func() { server.answer(200) },
//				…
//				Cannot: map[sinktest.Ability]string{
//					sinktest.Deny: "a file has no credentials",
//				},
//			}
//		}})
//	}
//
// New is called once per case, so it must give a peer with nothing stored: a new server, or a new topic of a
// broker that all cases share. Cases run one after the other. A sink with several modes (one record per request,
// batches, TLS) calls Run once for each.
//
// # What a peer cannot do
//
// Each [Ability] must either be there or have its reason in Peer.Cannot; a case that needs it is then reported as
// skipped, with that reason. An ability that is neither there nor explained fails the suite, and so does a reason
// for something that is there.
//
// # What the suite stands for
//
// The suite calls the sink as a pipeline does: it cuts batches by [sinks.Limits], gives each call a context with
// a deadline, holds later records of a key back once one failed, and sends what was not acknowledged again. At
// the end of every case it checks the promise: what was acknowledged is stored with an equal body, the first
// arrivals of each key are in order (also of records that were stored but not acknowledged), and no credential
// stands in an error or a log line. Single cases show that Deliver, Check and Close return when their context ends, that
// a record's memory may be used again once Deliver has returned, and that a record over the limit costs its neighbours
// nothing. If a sink is a [sinks.Checker], its Check is called, and must send nothing.
package sinktest
