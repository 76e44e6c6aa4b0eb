// Package oracle watches a cluster with nothing but the stock dynamic client and judges what kubeferry delivered.
//
// An [Oracle] lists each resource once and then reads plain watches from the list's resource version on. It shares no
// code with the program under test: no informer, no reflector, no known set.
//
// # When the oracle itself loses history
//
// A restarted API server refuses the oracle's watches like any other (410). The oracle then lists again and takes the
// difference. What happened in between is a hole: inside of it [Oracle.Compare] demands only the net difference, and
// cannot call a delivered record unexpected, and a report is OK only if the test allows for holes. Do not write around a
// restart if a test needs exactness.
//
// # Gaps
//
// A gap excuses what it contains, so its range is judged too: `from` is not before what the watch had sent, unless the
// kubeferry was killed, `to` is a version that the server had, nothing inside is sent as it happened afterwards, and what
// is inferred lies inside.
package oracle
