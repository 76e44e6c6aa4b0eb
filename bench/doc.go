// Package bench holds benchmarks that need no servers: go test -bench . ./bench. Below it is the program that kubeferry is
// compared with on real ones, by test/cmd/bench.
package bench
