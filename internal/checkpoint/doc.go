// Package checkpoint keeps what must survive a restart in one bbolt file: per watch its position and known set, per
// pipeline the log of what is handed to it and not settled.
//
// Everything that belongs together is written in one transaction, the commit: whatever a position covers is settled
// or in a log. So after a crash the watches go on from their positions and the logs are delivered first, and only
// what was acknowledged since the last commit is sent twice. A commit that fails, which may be on disk all the same, is
// captured anew, without what has come to nothing meanwhile.
//
// # File
//
//	meta                  format, cluster uid, epoch, clean
//	watches/<id>/meta     JSON: what the watch selects, its position
//	watches/<id>/known    <namespace>/<name> → resource version, uid
//	watches/<id>/previous <namespace>/<name> → what is retained of the object for its next change
//	logs/<pipeline>/...   sequence number → entry
//	deadLetters           number → letter
//
// Before bbolt opens the file for writing, every page in use is read and checked (pages.go). A file that is certainly damaged is
// set aside under another name and never deleted. A replica that takes over has the file open since it began to follow.
package checkpoint
