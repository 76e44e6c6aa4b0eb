package app

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/durable"
)

const redactionKeyFile = "redaction.key" // in the state directory

// FindRedactionKey returns the key of the digests: the configured one, or that in the state directory. It is empty if
// there is none yet.
func FindRedactionKey(c config.Redaction, stateDir string) ([]byte, error) {
	switch {
	case c.Key != "":
		return []byte(c.Key), nil
	case c.KeyFile != "":
		key, err := os.ReadFile(c.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read redaction.keyFile: %w", err)
		}
		if key = bytes.TrimRight(key, "\r\n"); len(key) == 0 {
			return nil, fmt.Errorf("redaction.keyFile: %s is empty", c.KeyFile)
		}
		return key, nil
	case stateDir != "":
		key, err := os.ReadFile(filepath.Join(stateDir, redactionKeyFile))
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return key, err
	default:
		return nil, nil
	}
}

// redactionKey returns the first of these keys that there is: the configured one, the one that is part of the state because replicas share or
// shared it, the one in the state directory, a new one. A key that is not configured is stored in the state directory. Without a state directory
// it lasts as long as the process.
func redactionKey(c config.Redaction, stateDir string, replicas *checkpoint.Stamp) ([]byte, error) {
	var shared []byte
	if replicas != nil {
		shared = replicas.RedactionKey
	}
	key, err := FindRedactionKey(c, stateDir)
	if configured := c.Key != "" || c.KeyFile != ""; err != nil || len(key) > 0 && (configured || len(shared) == 0 || bytes.Equal(key, shared)) {
		return key, err
	}
	if key = shared; len(key) == 0 {
		key = []byte(rand.Text())
	}
	if stateDir == "" {
		return key, nil
	}
	return key, durable.WriteFile(filepath.Join(stateDir, redactionKeyFile), key)
}
