// Package sinks is the contract between kubeferry's pipelines and the systems they deliver to.
//
// A sink is one package that provides a [Config] (what stands in the file under the sink's kind) and a [Sink]
// (what delivers). cmd/exporter lists the kinds; nothing else has to change to run a new one. Packages under sinks
// do not depend on Kubernetes: a [Record] is bytes with an id, a key and a few named [Fields].
//
// # Who decides what
//
// A sink classifies its errors, because only it can interpret a status or a code ([Error]). The pipeline
// decides what follows: whether to try again, when, and what becomes a dead letter. A sink therefore never
// retries on its own beyond what one call needs, and never drops a record.
//
// # Order
//
// A batch may hold several records of one key, in the order of the changes. A sink never acknowledges a record
// after an earlier one with the same key failed in the same call; one that cannot promise that sets
// [Limits.OnePerKey]. Batches that share a key are never in flight together.
package sinks
