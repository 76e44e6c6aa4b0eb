package main

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// profiling is a file that -profile lays over cmd/exporter when it builds it, so that the program itself needs no switch for
// what only a benchmark needs.
const profiling = `package main

import (
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"syscall"
)

func init() {
	name := os.Getenv("KUBEFERRY_BENCH_PROFILE")
	if name == "" {
		return
	}
	file, err := os.Create(name + ".cpu")
	if err != nil {
		panic(err)
	}
	runtime.SetCPUProfileRate(1000) // a run takes a second or two
	if err := pprof.StartCPUProfile(file); err != nil {
		panic(err)
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGUSR2)
	go func() {
		<-stop
		pprof.StopCPUProfile()
		_ = file.Close()
		if file, err := os.Create(name + ".part"); err == nil {
			_ = pprof.Lookup("allocs").WriteTo(file, 0)
			_ = file.Close()
		}
		_ = os.Rename(name+".part", name+".allocs")
	}()
}
`

// profileName is where the profiles of the next run go; empty for nowhere.
func (l *lab) profileName() string {
	if !l.profile {
		return ""
	}
	return filepath.Join(l.keep, fmt.Sprintf("%03d-kubeferry", l.runs+1))
}

// writeProfile has the program write its profiles, and waits for the last of them.
func (s *subject) writeProfile() {
	if s.profile == "" {
		return
	}
	s.process.Signal(syscall.SIGUSR2)
	for range 100 {
		if _, err := os.Stat(s.profile + ".allocs"); err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
}
