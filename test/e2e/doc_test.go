// Package e2e_test runs the real program, built with -race, against a real control plane and real brokers, and
// compares what arrives with an independent watch (package oracle).
//
// Tests that restart the shared API server or change its CRDs run one after the other; the others call t.Parallel and
// run when those are done. Each test has namespaces of its own, so that none sees another's objects.
package e2e_test
