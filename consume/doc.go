// Package consume reads the records of kubeferry: for programs that keep what exists in a cluster, or what happened in it.
//
// kubeferry delivers each change at least once, and the changes of one object in order. Records may come again, and late. docs/consumers.md
// has the four rules of a consumer; this package has them as code, and needs nothing but the standard library.
//
// [Decode] reads the formats cloudevents, cloudevents-binary and json, from Kafka, NATS, HTTP or a file. Then
//
//   - a [Table] holds what exists: the highest record of each object, and the highest mark of each snapshot;
//   - a [Filter] passes each change once and in order, in bounded memory: for whoever acts on changes.
//
// Whoever keeps the table in a database needs neither: two upserts and a view do it. The programs in examples/ show that.
package consume
