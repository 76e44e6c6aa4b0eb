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
//	meta             format, cluster uid, offset, clean; the size of the dead letters
//	watches          <watch> → JSON: what the watch selects, its position
//	known/<watch>    <namespace>/<name> → resource version, uid (known.go)
//	previous/<watch> <namespace>/<name> → what is retained of the object for its next change
//	logs             <pipeline> → the size of its log
//	log/<pipeline>   <flow> 0 <number> → entry; 0xFF <number> → its attempts (logs.go)
//	deadLetters      number → letter
//
// Each of these is a bucket, and no bucket is in another.
//
// At each start the whole file is read (verify.go), and then bbolt checks its tree. A file that is certainly damaged is set aside under another
// name and never deleted. A replica that takes over has the file open since it began to follow.
//
// Two kinds of damage still end the process, at each start, with "fatal error: fault" in bbolt: a branch page with a length that makes no sense,
// and a page that claims to go on for millions of others. An operator has to move such a file away.
package checkpoint
