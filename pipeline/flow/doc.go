// Package flow decides what a pipeline sends next. It is the whole of that decision: [Scheduler] makes batches of the records that wait,
// and returns after each call what becomes of its records.
//
// It starts no goroutine, does no input or output, and has no clock: its caller passes the time in. So the tests of this package run it
// for minutes of virtual time, against sinks that refuse, hang, limit or fail at random. Those scenarios, with their bounds, are
// the specification (scenarios_test.go).
//
// # Words
//
// An object has a queue of records, in order. One batch at a time holds an object. A flow is all that waits of one namespace. It has three lanes:
// objects that may be sent with any others (fresh), groups of objects that failed together (company), and objects that failed alone (alone).
// A call is sent apart if it is not a shared batch of fresh objects. It is slow if it takes a second or more.
//
// # Who is next
//
//  1. Fresh objects of all flows share batches. The flows take turns.
//  2. A troubled flow is the exception: its fresh objects are sent apart from those of others. A flow is troubled from when a failure is attributed
//     to it, until something of it was delivered and ten seconds have passed.
//  3. Groups, and objects that failed alone, are always sent apart. Shared batches and what is sent apart take turns. Of what is sent apart, groups of several flows come first, then the flows in turn, and of a flow its lanes in turn.
//  4. Calls that are sent apart have at most three quarters of the sink's calls. Of these, flows of which nothing was delivered in the last
//     minute have at most half of the sink's calls. These bounds, and what was delivered, count for all pipelines of a sink together ([Slots]).
//  5. In each pipeline, the calls that hold fresh objects of one flow are at most a quarter of the sink's calls, unless something of it was delivered
//     in the last second. Those that hold what failed of it are at most another quarter. So a namespace on which the sink hangs holds few calls,
//     whether we know it yet or not.
//
// # What a failure shows
//
// A call may fail as a whole because of one record in it. Which one it is shows when parts of it are sent:
//
//  6. A batch fails as a whole if nothing of it was delivered, unless each record was refused for good (rule 12). It is sent once more as it was: perhaps
//     the sink took it already, and recognizes it. If it fails again, it is halved, and each half is sent by itself, down to single records. No flow is in
//     both halves until a half is of one flow.
//  7. If the call was slow, it is not sent once more as it was, but divided by flow at once. All flows of what failed in it are troubled then.
//  8. A failure is attributed to a flow if the call held nothing of others, or was slow. A record that is sent alone is known to fail by itself if
//     something was delivered since it first failed: then its failures prove nothing about the sink.
//  9. A record that failed while others of its call were delivered fails by itself: it is sent again after a delay, as a fresh object unless the call
//     was slow. A record that failed alone is sent alone from then on, after a delay, and at most every 50 ms of one flow. The delay doubles with each failure, up
//     to 1.5 s while nothing is delivered, and else up to [Options.Max].
//  10. Retry-After belongs to the flow, if the call held nothing of others. A batch of several flows is sent once more as it was, after 1.5 s at
//     most ([Options.Initial] if that is more), and then by flow. The records are not to blame, and are fresh again. If others of a call of several flows
//     were delivered, rule 9 holds instead.
//
// # When the sink is away
//
//  11. After ten failed calls in a row, and a second in which nothing was delivered, the sink counts as away. Then calls hold one record each, and are
//     0.1 s apart, which doubles to 1.5 s. They are, in turn, of
//     the flow of which something was delivered last, and of the one that was called longest ago. The first that is delivered ends it. In the second
//     before, calls are 0.1 s apart if ten of those that failed held something of flows of which something was delivered in the last minute.
//
// # What is given up
//
//  12. A record that the sink refuses for good ([Refused]) becomes a dead letter. But if the last ten calls failed, of which each record that is
//     refused for good counts as one, the sink itself may be wrong: then the record waits, and becomes a letter if it is refused once more after
//     something was delivered, or while sources wait for memory ([Scheduler.SetFull]).
//  13. An attempt counts towards [Options.Attempts] only if the record failed by itself. The first counts, and each further one if something was
//     delivered since the one before. So an outage uses up one attempt at most, and makes no dead letter.
//
// # Limits
//
// These are known, and would cost more rules than they are worth:
//
//   - A sink that limits the rate of all calls, to 20 a second say, gets them in ever smaller batches if there are thousands of namespaces: it takes
//     all of 1,000 changes a second in 20 namespaces, four fifths in 300, and one fifth in 3,000.
//   - In the first second of an outage, some 20 calls fail before the sink counts as away, and 30 in batches of one. A namespace with a thousand
//     objects that are refused looks the same if nothing of another one comes: its good changes wait for a minute then. If one more that is refused
//     comes each second, they wait for as long as that goes on, and many minutes more.
//   - Where three pipelines share a sink with four calls of one record each, and it hangs on five namespaces that all of them have, changes of others
//     wait for up to 50 s.
//   - With four calls at once, the good changes of a namespace in which 20 new objects are refused each second wait for up to 20 s.
//   - After an outage in which the sink hung, the first record may take until a call that was under way has timed out.
package flow
