package file

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kubeferry/kubeferry/sinks"
)

var _ sinks.Checker = (*Sink)(nil)

// Check implements [sinks.Checker]. It leaves the file as it is, and makes none: where there is none yet, an empty one
// of another name is made beside and removed again.
func (s *Sink) Check(context.Context) error {
	dir := filepath.Dir(s.path)
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return sinks.Transient(sinks.ReasonNotFound, fmt.Errorf("the directory %s does not exist: make it, or mount the volume there", dir))
	case err != nil:
		return classify(err)
	case !info.IsDir():
		return sinks.Transient(sinks.ReasonNotFound, fmt.Errorf("%s is not a directory: check path", dir))
	}
	at, err := os.Stat(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		probe, err := os.CreateTemp(dir, ".kubeferry-check-*")
		if err != nil {
			return unwritable(err)
		}
		return unwritable(errors.Join(probe.Close(), os.Remove(probe.Name())))
	case err != nil:
		return classify(err)
	case !at.Mode().IsRegular():
		return sinks.Transient(sinks.ReasonUnavailable, fmt.Errorf("%s is not a regular file: check path", s.path))
	}
	file, err := os.OpenFile(s.path, os.O_APPEND|os.O_RDWR, 0)
	if err != nil {
		return unwritable(err)
	}
	return unwritable(file.Close())
}

// unwritable adds what to do about it.
func unwritable(err error) error {
	if errors.Is(err, fs.ErrPermission) {
		err = fmt.Errorf("%w: give the user %d the right to write there", err, os.Getuid())
	}
	return classify(err)
}
