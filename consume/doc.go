// Package consume reads the records of kubeferry: for programs that keep what exists in a cluster, or what happened in it.
//
// kubeferry delivers each change at least once, and the changes of one object in order. So a consumer has to recognize
// repetitions, which may come late, and has to remove what it missed the deletion of. docs/consumers.md has the rules; this
// package has them as code, and needs nothing but the standard library.
//
// [Decode] reads the formats cloudevents, cloudevents-binary and json, from Kafka, NATS, HTTP or a file. Then
//
//   - a [Filter] passes each change once and in order, in bounded memory: for a log, or for whoever acts on changes;
//   - a [Table] holds what exists: it applies records in order, and is complete after a snapshot.
//
// Whoever keeps the table in a database needs neither: an upsert that compares [Record.Place] does it, and the position up to which
// the stream is stored, so that nothing is applied again. The programs in examples/ show that.
//
// # Streams
//
// What stands between the marks of a snapshot is known only where records are read in the order in which they were written:
// a JetStream stream, one partition of a topic, one receiver of webhooks. So there is one [Table] for each partition; each has the marks.
package consume
