package progress

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestLines: without a terminal there is a line when something begins to take long, one every half minute, and one at the end.
func TestLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := &Log{lines: &out}
		build := func(name, about string, takes time.Duration, err error) {
			got := Build(log, name, about, func() error {
				time.Sleep(takes)
				return err
			})
			if !errors.Is(got, err) {
				t.Errorf("%s: got %v, want %v", name, got, err)
			}
		}
		build("what is there", "", 100*time.Millisecond, nil)
		build("the server", "a minute", 70*time.Second+time.Millisecond, nil)
		build("the rest", "", 2500*time.Millisecond, errors.New("no compiler"))
		want := `building the server, which takes a minute
still building the server, for 31s
still building the server, for 1m1s
built the server in 1m10s
building the rest
`
		if out.String() != want {
			t.Errorf("got\n%s\nwant\n%s", out.String(), want)
		}
	})
}

// TestTerminal: a terminal shows all that is being built, below the lines.
func TestTerminal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := &Log{lines: &out, terminal: &out}
		_ = Build(log, "one", "", func() error {
			time.Sleep(500 * time.Millisecond)
			return Build(log, "two", "", func() error {
				time.Sleep(2700 * time.Millisecond)
				fmt.Fprintln(log, "a line")
				return nil
			})
		})
		shown := strings.Split(out.String(), "\r\x1b[K")
		want := []string{
			"", "building one\nbuilding one for 1s", "building two\nbuilding one for 2s, and two for 1s", "building one for 2s, and two for 2s",
			"building one for 3s, and two for 2s", "building one for 3s, and two for 3s", "a line\nbuilding one for 3s, and two for 3s",
			"built two in 3s\nbuilding one for 3s", "built one in 3s\n",
		}
		if fmt.Sprintf("%q", shown) != fmt.Sprintf("%q", want) {
			t.Errorf("got\n%q\nwant\n%q", shown, want)
		}
	})
}
