package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// usage is what a process has used so far.
type usage struct {
	CPU time.Duration // user and system
	// RSS and Peak are bytes of resident memory, now and at most.
	RSS, Peak int64
}

// readUsage reads the kernel's figures.
func readUsage(pid int) (usage, error) {
	var u usage
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	status, err := os.ReadFile(filepath.Join(dir, "status"))
	if err != nil {
		return u, err
	}
	for line := range strings.Lines(string(status)) {
		switch name, value, _ := strings.Cut(line, ":"); name {
		case "VmRSS":
			u.RSS, err = kilobytes(value)
		case "VmHWM":
			u.Peak, err = kilobytes(value)
		}
		if err != nil {
			return u, err
		}
	}
	if u.CPU, err = ticks(dir); err != nil {
		return u, err
	}
	// The scheduler counts nanoseconds, if it is set up to, but forgets threads that ended; Go ends hardly any.
	if fine, err := scheduled(dir); err == nil {
		u.CPU = max(u.CPU, fine)
	}
	return u, nil
}

func kilobytes(value string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
	return n << 10, err
}

// ticks reads utime and stime, in units of 10 ms: USER_HZ is 100 wherever Linux runs Go.
func ticks(dir string) (time.Duration, error) {
	stat, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return 0, err
	}
	// The second field is the program's name in parentheses, which may hold blanks.
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 13 {
		return 0, errors.New("malformed /proc/…/stat")
	}
	var total time.Duration
	for _, field := range fields[11:13] {
		n, err := strconv.ParseInt(string(field), 10, 64)
		if err != nil {
			return 0, fmt.Errorf("malformed /proc/…/stat: %w", err)
		}
		total += time.Duration(n) * 10 * time.Millisecond
	}
	return total, nil
}

func scheduled(dir string) (time.Duration, error) {
	threads, err := filepath.Glob(filepath.Join(dir, "task", "*", "schedstat"))
	if err != nil {
		return 0, err
	}
	var total time.Duration
	for _, thread := range threads {
		text, err := os.ReadFile(thread)
		if err != nil {
			continue // it ended just now
		}
		first, _, _ := bytes.Cut(text, []byte(" "))
		n, err := strconv.ParseInt(string(first), 10, 64)
		if err != nil {
			return 0, err
		}
		total += time.Duration(n)
	}
	return total, nil
}
