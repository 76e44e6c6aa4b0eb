// Package nats delivers records to NATS, to a JetStream stream or to plain subjects.
//
// # One connection, one life
//
// nats.go can reconnect by itself. Then a publish may go into a buffer that the next connection sends or drops, a
// flush may be answered by another connection than the one that took the message, and pending acknowledgements fail
// some time later. So a connection is never revived here (nats.Options.AllowReconnect is false): when one is lost,
// whatever waits on it fails, and the next Deliver call makes a new one. That reads every credentials and TLS
// file anew, has no buffer to overrun, and the pipeline's backoff is the only one.
//
// # JetStream
//
// A batch is published without waiting, then its acknowledgements are awaited. An early record may be refused (too
// large, stream full) and a later one stored, so a batch holds one record per key ([sinks.Limits.OnePerKey]).
// Nats-Msg-Id is the record's DedupID: what is sent again within the stream's duplicate window is acknowledged and
// not stored again. nats.go's own retries after "no responders" are switched off.
//
// # Core NATS
//
// A PONG proves that the server has read what was sent before its PING over the same connection. It does not prove
// that the server let it pass: a missing permission is reported by an -ERR line that comes before the PONG, but
// reaches the program through a callback ([refusals]). Nobody stores anything; a record that no subscriber listens
// for is gone.
//
// # Sizes and characters
//
// max_payload counts body and headers. A subject is a control line of at most 4,096 bytes, over which the server
// closes the connection, so its length is checked here. In the values of placeholders everything but visible ASCII,
// and '.', '*', '>' and '$', becomes '_' (ADR-6, naming rules).
package nats
