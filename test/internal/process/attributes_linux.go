package process

import "syscall"

// attributes put the child into a process group of its own and let the kernel kill it with its parent. Pdeathsig
// follows the thread that started the child; the Go runtime ends no thread that it did not lock to a goroutine
// (golang.org/issue/27505), so callers must not hold runtime.LockOSThread.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
