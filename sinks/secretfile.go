package sinks

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// ReadSecret returns the content of the file at path, without trailing line breaks; key is the key of the configuration
// that names it. If path is empty, it returns value: what the configuration has in place of a file. Files with secrets are read for each
// connection or request, so that mounted Secrets may rotate. An error is a *[FileError], also while the file is missing for a moment because it
// is being replaced.
func ReadSecret(key, path, value string) (string, error) {
	if path == "" {
		return value, nil
	}
	content, err := os.ReadFile(path)
	if err != nil {
		return "", &FileError{key, path, err}
	}
	secret := strings.TrimRight(string(content), "\r\n")
	if secret == "" {
		return "", &FileError{key, path, errors.New("the file is empty")}
	}
	return secret, nil
}

// FileError reports that a file named in the configuration cannot be used: the peer is not at fault.
type FileError struct {
	// Key of the configuration that names the file at Path.
	Key, Path string
	Err       error
}

func (e *FileError) Error() string {
	return fmt.Sprintf("%s %s cannot be used: %v", e.Key, e.Path, e.Err)
}
func (e *FileError) Unwrap() error { return e.Err }
