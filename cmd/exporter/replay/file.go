package replay

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/gofrs/flock"

	"github.com/kubeferry/kubeferry/internal/durable"
	"github.com/kubeferry/kubeferry/pipeline"
)

const replaying = ".replaying-"

// file sends the letters of a file, which may not be there. It is moved aside first, since a sink may go on writing to it. An
// interrupted replay leaves what it moved aside, and the next goes on with it.
func (r *replay) file(ctx context.Context, path string) error {
	lock := flock.New(filepath.Dir(path), flock.SetFlag(os.O_RDONLY))
	defer lock.Close()
	if locked, err := lock.TryLock(); err == nil && !locked { // an error: the file system has no locks
		return fmt.Errorf("another replay runs on files in %s", filepath.Dir(path))
	}
	if err := holdsLetters(path); err != nil {
		return err
	}
	aside := path + replaying + time.Now().UTC().Format("20060102T150405.000000000")
	if err := os.Rename(path, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	entries, err := os.ReadDir(filepath.Dir(path)) // sorted
	if err != nil {
		return err
	}
	var pending []string
	for _, entry := range entries {
		if name := entry.Name(); strings.HasPrefix(name, filepath.Base(path)+replaying) && !strings.HasSuffix(name, durable.Unfinished) {
			pending = append(pending, filepath.Join(filepath.Dir(path), name))
		}
	}
	if len(pending) == 0 {
		return nil
	}
	err = durable.Write(pending[0], func(left io.Writer) error {
		for _, from := range pending {
			if err := r.lines(ctx, from, left); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	// What is left is older than what was written to the file meanwhile, and has to stay before it: so it gets the old name
	// back only if that is free.
	if r.left > 0 {
		if err := os.Link(pending[0], path); errors.Is(err, fs.ErrExist) {
			pending = pending[1:]
		} else if err != nil {
			return err
		}
	}
	for _, done := range pending {
		if err := os.Remove(done); err != nil {
			return err
		}
		_ = os.Remove(done + durable.Unfinished) // nearly always there is none
	}
	return nil
}

// holdsLetters returns an error for what is there and is no file of dead letters: a replay would write it anew, line by line.
func holdsLetters(path string) error {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no file", path)
	}
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	others := 0
	for reader := bufio.NewReader(file); others < 100 && err == nil; { // a crash may have cut off one
		var line []byte
		line, err = reader.ReadBytes('\n')
		if _, no := pipeline.DecodeLetter(line); no == nil {
			return nil
		}
		if len(bytes.TrimSpace(line)) > 0 {
			others++
		}
	}
	if others == 0 {
		return nil
	}
	return fmt.Errorf("%s holds no dead letters; those of a state file that was set aside are read by `kubeferry state recover`", path)
}

// lines sends the letters of one file, and writes those that stay.
func (r *replay) lines(ctx context.Context, path string, left io.Writer) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	for reader := bufio.NewReader(file); ; {
		line, err := reader.ReadBytes('\n')
		if letter := bytes.TrimSpace(line); len(letter) > 0 && !r.deliver(ctx, letter) {
			if _, err := left.Write(append(letter, '\n')); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
