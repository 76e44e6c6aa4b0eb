// Package e2e_test runs the real program, built with -race, against a real control plane and real brokers, and
// compares what arrives with an independent watch (package oracle).
//
// Tests that restart the API server, compact etcd, change CRDs or watch all namespaces call disturbing: they run one after the
// other with a control plane of their own. Those that call beside share another one, several at once. The rest measure times, and run
// alone, before the others. Each test has namespaces of its own, so that none sees another's objects.
package e2e_test
