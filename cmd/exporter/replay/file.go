package replay

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
)

// standardInput is the path that stands for [Options.Input].
const standardInput = "-"

// file sends the letters of a file, or of the standard input, and prints those that were not sent. The file stays as it is: a sink may still write to it.
func (r *replay) file(ctx context.Context, path string) error {
	from := r.Input
	if path != standardInput {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		from = file
	}
	for reader := bufio.NewReader(from); ; {
		line, err := reader.ReadBytes('\n')
		if letter := bytes.TrimSpace(line); len(letter) > 0 && !r.deliver(ctx, letter) {
			if _, err := fmt.Fprintf(r.Letters, "%s\n", letter); err != nil {
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
