// Package kafka delivers records to Apache Kafka through segmentio/kafka-go.
//
// # Why Client.Produce and not Writer
//
// The pipeline batches, retries and keeps the order. kafka.Writer does all three again: it waits on a timer of its
// own, retries ten times in silence, and lets the next batch of a partition go ahead once it gave up, which breaks
// order per object. [kafka.Client.Produce] sends one batch to one partition, once, and says what came of it.
//
// # Order and acknowledgement
//
// The records of one call are grouped by topic and partition. Groups are sent side by side; each is sent in order,
// as few requests as its size allows. A Kafka record batch is stored as a whole or not at all. When a broker refuses
// a batch for the sake of one record (MESSAGE_TOO_LARGE, INVALID_RECORD …) the batch is halved until that record
// stands alone, so that its neighbours are stored; later records of the same object are then held back. Any other
// error ends the group. A configuration that may spread one object over several groups (key: none, key: uid,
// {type} in the topic) asks for one record per key and call.
//
// kafka-go has no idempotent producer. A lost answer therefore stores a record twice; consumers tell by the header
// kubeferry-dedup-id, which is the same each time.
//
// # Sizes
//
// A broker's message.max.bytes (1,048,588 unless set) bounds a whole compressed batch with 61 bytes of its own, a
// producer's max.request.size (1,048,576) one uncompressed record. What is over the latter is still sent, alone:
// the broker decides, since it may allow more, and compression may help.
//
// # Partitions
//
// The partition is the one that Java's client would choose (BuiltInPartitioner.partitionForKey: murmur2 of the key,
// sign bit off, modulo the number of partitions), so that other producers of the same keys agree.
//
// # Metadata
//
// kafka-go's Transport reads the cluster's metadata again at random moments within [metadataTTL] and has no call to
// do so at once. After an error that smells of old metadata the pool of connections is given up instead
// ([kafka.Transport.CloseIdleConnections]): the next call opens a new one, which starts by reading it. Calls under
// way keep the old pool until they end.
package kafka
