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

// file sends the letters of a file, and prints those that were not sent. The file stays as it is: a sink may still write to it.
func (r *replay) file(ctx context.Context, path string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	for reader := bufio.NewReader(file); ; {
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
