package checkpoint

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// othersAside reports whether files were set aside in the directory of one: what they held is lost to it.
func othersAside(path string) bool {
	others, err := filepath.Glob(path + asideInfix + "*")
	return err != nil || len(others) > 0
}

// whatIsLeft counts what can be read of a file that cannot be used.
func whatIsLeft(path string) string {
	waiting, letters := uint64(0), uint64(0)
	_ = Salvage(path, Salvaged{ // what cannot be read is not counted
		Entry:  func(string, delta.Entry) error { waiting++; return nil },
		Letter: func([]byte) error { letters++; return nil },
	})
	return counted(waiting, letters)
}

// counted names what a file that is set aside holds.
func counted(waiting, letters uint64) string {
	return fmt.Sprintf("%d undelivered entries and %d dead letters", waiting, letters)
}

// asideInfix is between the name of a file that is set aside and the time.
const asideInfix = ".set-aside-"

func setAside(path, reason string, cause error, report func(message string, err error)) error {
	aside := fmt.Sprintf("%s%s%s", path, asideInfix, time.Now().UTC().Format("20060102T150405.000000000"))
	if err := os.Rename(path, aside); err != nil {
		return fmt.Errorf("set the state file aside (%s): %w", reason, errors.Join(cause, err))
	}
	report("the state file is set aside as "+aside+" and a new one begun: "+reason, cause)
	return nil
}
