// Package consume reads the records of kubeferry. It is for programs that keep a table of the objects that exist in a cluster, or that do
// something about each change.
//
// kubeferry delivers each change at least once, and the changes of one object in order. A record may come again, and a repetition may come
// behind later records. docs/consumers.md has the four rules that a consumer follows. This package applies them, and imports the standard
// library only.
//
// [Decode] reads the formats cloudevents, cloudevents-binary and json, from Kafka, NATS, HTTP or a file. Then
//
//   - a [Table] holds what exists: the highest record of each object, and the highest complete mark of each resource and namespace;
//   - a [Filter] passes each change once and in order, in bounded memory. It is for programs that act on changes.
//
// A program that keeps the table in a database needs neither of them: two upserts and a view are enough. The programs in examples/ show
// these.
package consume
