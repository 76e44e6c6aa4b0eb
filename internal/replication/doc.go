// Package replication lets several replicas of the program share one state, of which one leads and delivers.
//
// # Roles
//
// All of them run for one Lease. The leader watches, delivers and commits. A standby watches nothing and delivers nothing: it holds
// a copy of the leader's state. After a commit is on the leader's disk it is sent to every standby; the leader waits for none of
// them, except for four seconds at most before it sends what the next leader must not miss, as that a resource is gone. A copy that is
// late by some commits is the state of some commits ago, as after a crash: the API server gives what happened since, and what was
// acknowledged since is sent again under the same ids.
//
// # The copy
//
// A standby connects to the address in the Lease. It gets ranges of keys, each read in a short transaction, and between them the commits
// meanwhile. Changes are puts and removes of keys: applied twice they are the same as once, and a range is never older than a commit
// that was sent before it. So at the end the copy equals some commit, which the leader names; then it takes the place of the
// former copy, and the commits that have arrived are applied in one transaction, and acknowledged. A connection that breaks means a
// new copy, in a file of its own. A standby for which too much waits is dropped. A commit that fails drops none: the next one has all
// that it had.
//
// # Who may lead
//
// Each commit has a stamp: a lineage (random, made with an empty state), the term of the leader that wrote it, and a number that grows.
// Annotations of the Lease name lineage, term and number of the newest copy: of a standby in sync, else the leader's own. They name
// a commit that the next leader must not miss before its deltas are sent, even if no standby has it: a copy without it is then older. Term
// and number compare in that order; another lineage is older.
//
// A Lease is free when its leader gave it up, or did not renew it for its duration. One rule says how long a replica then leaves it to
// others: one that is not older takes it at once, an older one after staleWait, an empty one after five minutes. [Lease] checks that in
// the update that takes it. Each change of the Lease begins the time anew. While the API server does not answer it stands still.
//
// Until a leader's first commit, the Lease names the last leader's copy, or a commit that no copy has if the Lease was made anew. If the
// leader ends before, the others wait by the same rule again. Kubernetes starts a replica that fails at each start later each time: an older
// one leads in the first pause that is longer than staleWait. The new term is one more than any that was read, or than the time in
// microseconds if that is larger: a Lease that is deleted takes its term along.
//
// A Lease without annotations was made by hand, perhaps while another leads: it is free once it was seen for its duration, or for that
// of the former Lease, if a replica has read that and it is longer.
//
// The Lease also names the highest offset that leaders have added to resource versions to make sequences. A replica without the commit that
// raised the offset begins with the one in the Lease, so that the sequences of an object never go back. A leader that has raised the offset
// renews the Lease before it delivers anything.
//
// # When a leader must stop
//
// A Lease is valid for its duration from before its last renewal was sent, by the larger of monotonic and wall time. When one
// second is left, [Permit] cancels the deliveries under way and lets none begin. The leader goes on when the Lease is renewed, if
// no other replica held it meanwhile. If one did, the process ends, and starts again as a standby.
//
// A leader that is stopped lets the deliveries under way end, writes a last commit, waits for a standby to acknowledge it, gives the
// Lease up and closes the connections. To a standby a closed connection means that it reads the Lease at once.
//
// # The connection
//
// TLS with a certificate that the leader makes at its start and whose SHA-256 is in the Lease. A standby shows a token of its
// ServiceAccount that was requested for that SHA-256 as audience, so it is worth nothing elsewhere, and the leader has the API server
// review it. The leader answers with one for another audience of that SHA-256, so that whoever may write the Lease, and no more,
// cannot give a standby a state, nor get it. Whoever may write it can still stop the replicas, raise terms and the offset, and make the
// leader's Lease look ended to a standby, so that both deliver until the leader's next renewal fails.
package replication
