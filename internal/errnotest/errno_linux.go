// Package errnotest makes system calls fail in tests, with the errors that disks and volumes return.
package errnotest

import (
	"runtime"
	"syscall"
	"testing"
	"unsafe"
)

// Of linux/seccomp.h, linux/prctl.h and linux/filter.h.
const (
	prSetNoNewPrivs   = 38
	prSetSeccomp      = 22
	seccompModeFilter = 2
	returnAllow       = 0x7fff0000
	returnErrno       = 0x00050000
	loadWord          = 0x20 // BPF_LD | BPF_W | BPF_ABS
	jumpEqual         = 0x15 // BPF_JMP | BPF_JEQ | BPF_K
	and               = 0x54 // BPF_ALU | BPF_AND | BPF_K
	ret               = 0x06 // BPF_RET | BPF_K
)

// Call is a system call that fails. If Mask is set, it fails only where the lower half of an argument has the Value.
type Call struct {
	Number                uintptr
	Argument, Mask, Value uint32
}

// Fail calls f in a thread in which the kernel answers a system call with an error, as a seccomp filter has it. f must not go on in
// another goroutine.
func Fail(t testing.TB, call Call, errno syscall.Errno, f func()) {
	t.Helper()
	filter := []syscall.SockFilter{
		{Code: loadWord, K: 0}, // the number
		{Code: jumpEqual, K: uint32(call.Number), Jf: 4},
		{Code: loadWord, K: 16 + 8*call.Argument}, // on machines of this byte order
		{Code: and, K: call.Mask},
		{Code: jumpEqual, K: call.Value, Jf: 1},
		{Code: ret, K: returnErrno | uint32(errno)},
		{Code: ret, K: returnAllow},
	}
	program := syscall.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	done := make(chan syscall.Errno)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		_, _, err := syscall.RawSyscall6(syscall.SYS_PRCTL, prSetNoNewPrivs, 1, 0, 0, 0, 0)
		if err == 0 {
			_, _, err = syscall.RawSyscall(syscall.SYS_PRCTL, prSetSeccomp, seccompModeFilter, uintptr(unsafe.Pointer(&program)))
		}
		if err == 0 {
			f()
		}
		done <- err
	}()
	if err := <-done; err != 0 {
		t.Fatalf("seccomp: %v", err)
	}
}
