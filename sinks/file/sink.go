package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kubeferry/kubeferry/internal/durable"
	"github.com/kubeferry/kubeferry/sinks"
)

// Sink appends to one file.
type Sink struct {
	path   string
	sync   bool
	writes *sinks.Serial

	file *os.File // nil if it has to be opened; belongs to writes
}

var _ sinks.Sink = (*Sink)(nil)

// Deliver implements [sinks.Sink].
func (s *Sink) Deliver(ctx context.Context, batch []sinks.Record) error {
	if err := ctx.Err(); err != nil || len(batch) == 0 {
		return err
	}
	lines := sinks.AppendLines(nil, batch)
	return s.writes.Do(ctx, func() error { return classify(s.append(lines)) })
}

// Close implements [sinks.Sink].
func (s *Sink) Close(ctx context.Context) error { return s.writes.Do(ctx, s.close) }

// append writes whole lines or nothing.
func (s *Sink) append(lines []byte) error {
	if err := s.reopen(); err != nil {
		return err
	}
	// Another process may append too, as `kubeferry replay` does, and a write that fails here must not cut off what it wrote meanwhile. It is
	// no error if the file system has no locks. Closing the file unlocks it.
	file := s.file
	lock(file)
	defer func() {
		if s.file == file {
			unlock(file)
		}
	}()
	if err := closeTornLine(file); err != nil {
		return err
	}
	info, err := s.file.Stat()
	if err != nil {
		return err
	}
	_, err = s.file.Write(lines)
	if err == nil && s.sync {
		err = s.file.Sync()
	}
	if err != nil {
		// Half a batch would be counted by readers, and sent again. If even this fails, the next open closes the torn
		// line. After a failed sync the descriptor must not be trusted: Linux reports the failure only once.
		return errors.Join(err, s.file.Truncate(info.Size()), s.close())
	}
	// Whoever moved the file away meanwhile may have read it before the lines were there.
	if at, err := os.Stat(s.path); err != nil || !os.SameFile(info, at) {
		return errors.Join(fmt.Errorf("%s was moved away while it was written; the records are written again", s.path), s.close())
	}
	return nil
}

// reopen makes sure that file is the one at path: logrotate may have moved it away.
func (s *Sink) reopen() error {
	at, err := os.Stat(s.path)
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return err
	case err == nil && !at.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", s.path)
	}
	created := err != nil
	if s.file != nil {
		if open, err := s.file.Stat(); err == nil && !created && os.SameFile(open, at) {
			return nil
		}
		if err := s.close(); err != nil {
			return err
		}
	}
	file, err := os.OpenFile(s.path, os.O_APPEND|os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	if created && s.sync {
		if err := durable.SyncDir(filepath.Dir(s.path)); err != nil {
			return errors.Join(err, file.Close())
		}
	}
	s.file = file
	return nil
}

// closeTornLine ends a line that a crash left unfinished, so that the next record has a line of its own.
func closeTornLine(file *os.File) error {
	info, err := file.Stat()
	if err != nil || info.Size() == 0 {
		return err
	}
	var last [1]byte
	if _, err := file.ReadAt(last[:], info.Size()-1); err != nil || last[0] == '\n' {
		return err
	}
	_, err = file.Write([]byte{'\n'})
	return err
}

func (s *Sink) close() error {
	if s.file == nil {
		return nil
	}
	file := s.file
	s.file = nil
	return file.Close()
}

// classify gives the reason; none is permanent, because no file system refuses one record for good.
func classify(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, fs.ErrNotExist):
		return sinks.Transient(sinks.ReasonNotFound, err)
	case errors.Is(err, fs.ErrPermission):
		return sinks.Transient(sinks.ReasonUnauthorized, err)
	default:
		return sinks.Transient(sinks.ReasonUnavailable, err)
	}
}

var _ sinks.Describer = (*Config)(nil)

// Describe implements [sinks.Describer].
func (c *Config) Describe(r *sinks.Record) sinks.Destination {
	return sinks.Destination{Place: "file " + c.Path, Body: r.Structured()}
}
