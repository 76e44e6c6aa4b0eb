package sinks_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
)

func TestReadSecret(t *testing.T) {
	if got, err := sinks.ReadSecret("passwordFile", "", "inline"); err != nil || got != "inline" {
		t.Errorf("without a file: got %q, %v", got, err)
	}
	path := filepath.Join(t.TempDir(), "secret")
	for _, test := range []struct{ content, want string }{
		{"first\r\n", "first"},
		{"other", "other"},
		{"third with a blank ", "third with a blank "},
	} {
		put(t, path, []byte(test.content))
		if got, err := sinks.ReadSecret("tokenFile", path, ""); err != nil || got != test.want {
			t.Errorf("%q: got %q, error %v; want %q", test.content, got, err, test.want)
		}
	}
	put(t, path, []byte("\n"))
	var fault *sinks.FileError
	if _, err := sinks.ReadSecret("tokenFile", path, ""); !errors.As(err, &fault) || fault.Key != "tokenFile" {
		t.Errorf("an empty file: got error %v", err)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, err := sinks.ReadSecret("tokenFile", path, ""); !errors.Is(err, os.ErrNotExist) || !errors.As(err, &fault) {
		t.Errorf("without the file: got error %v", err)
	}
}
