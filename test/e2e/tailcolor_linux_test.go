package e2e_test

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestExtendedTailColor: a table is colored at a terminal only, and not where NO_COLOR is set.
func TestExtendedTailColor(t *testing.T) {
	beside(t)
	kubeconfig, namespace := plane(t).KubeconfigFile(), newNamespace(t, "color")
	objectsIn(t, plane(t).Config(), configMaps, namespace).Create("web", data("1"))
	for _, test := range []struct {
		name  string
		open  func(t *testing.T) (reader, writer *os.File)
		env   string
		color bool
	}{
		{"terminal", terminal, "NO_COLOR=", true},
		{"NO_COLOR", terminal, "NO_COLOR=1", false},
		{"dumb", terminal, "TERM=dumb", false},
		{"pipe", pipe, "NO_COLOR=", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			reader, writer := test.open(t)
			command := exec.CommandContext(within(t, wide), raceBinary(t), "tail", "--kubeconfig", kubeconfig, "configmaps", "-n", namespace, "--snapshot")
			command.Env = append(os.Environ(), "NO_COLOR=", "TERM=xterm", test.env)
			command.Stdout = writer
			if err := errors.Join(command.Start(), writer.Close()); err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			buffer := make([]byte, 4096)
			for shown := false; ; {
				n, err := reader.Read(buffer)
				out.Write(buffer[:n])
				if !shown && strings.Contains(out.String(), namespace+"/web") {
					shown = true
					_ = command.Process.Signal(os.Interrupt) // it may have ended
				}
				if err != nil { // its end: a terminal then fails
					break
				}
			}
			if err := command.Wait(); err != nil {
				t.Errorf("%v: %q", err, out.String())
			}
			if text := out.String(); !strings.Contains(text, namespace+"/web") || strings.Contains(text, "\x1b[32mADDED") != test.color || strings.Contains(text, "\x1b") != test.color {
				t.Errorf("color is to be %t: %q", test.color, text)
			}
		})
	}
}

func pipe(t *testing.T) (reader, writer *os.File) {
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close() })
	return reader, writer
}

// terminal returns the two ends of a pseudo-terminal.
func terminal(t *testing.T) (reader, writer *os.File) {
	reader, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = reader.Close() })
	if err := unix.IoctlSetPointerInt(int(reader.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(reader.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	writer, err = os.OpenFile("/dev/pts/"+strconv.Itoa(number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	return reader, writer
}
