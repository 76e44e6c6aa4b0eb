// Package bench holds benchmarks that anyone can run: go test -bench . ./bench
package bench
