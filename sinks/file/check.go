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
func (s *Sink) Check(context.Context) error { return classify(s.check()) }

func (s *Sink) check() error {
	info, err := os.Stat(s.path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		probe, err := os.CreateTemp(filepath.Dir(s.path), ".kubeferry-check-*")
		if err != nil {
			return err
		}
		return errors.Join(probe.Close(), os.Remove(probe.Name()))
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("%s is not a regular file", s.path)
	}
	file, err := os.OpenFile(s.path, os.O_APPEND|os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return file.Close()
}
