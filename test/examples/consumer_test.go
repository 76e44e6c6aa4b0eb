package examples_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/test/internal/exampleprograms"
	"github.com/kubeferry/kubeferry/test/internal/process"
	"github.com/kubeferry/kubeferry/test/kafkatest"
)

// consumer is one of the examples. It is killed and started again over the same database.
type consumer struct {
	t       *testing.T
	name    string
	options process.Options
	db      string
	process *process.Process
}

// newConsumer prepares an example in a language. database is how its argument of that name begins.
func newConsumer(t *testing.T, language, program string, args ...string) *consumer {
	t.Helper()
	dir := t.TempDir()
	c := &consumer{t: t, name: language + " " + program, db: filepath.Join(dir, "table.db")}
	var command exampleprograms.Command
	var err error
	dash := "--"
	switch language {
	case "go":
		dash = "-"
		command.Path, err = exampleprograms.Go(program).Path()
	case "python":
		command, err = exampleprograms.Python(program + "_table.py")
	case "java":
		command, err = exampleprograms.Java()
	}
	if err != nil && os.Getenv("CI") != "true" {
		t.Skipf("%s: %v", c.name, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.options = process.Options{Path: command.Path, Args: command.Args, Dir: command.Dir, Log: filepath.Join(dir, "log"), Env: javaOptions(dir)}
	for i, arg := range append(args, "db", c.db) {
		switch {
		case i%2 == 1:
			c.options.Args = append(c.options.Args, arg)
		case language != "java":
			c.options.Args = append(c.options.Args, dash+arg)
		}
	}
	return c
}

// javaOptions has Java write nothing outside dir, where its libraries go: a killed process leaves them.
func javaOptions(dir string) []string {
	return []string{"JDK_JAVA_OPTIONS=-XX:-UsePerfData -Djava.io.tmpdir=" + dir}
}

// newShown prepares the example that examples/README.md shows for a language, by the command that is there: only broker, topic, group and
// database are others.
func newShown(t *testing.T, language, broker, topic string) *consumer {
	t.Helper()
	root, _, command, err := exampleprograms.Shown(language)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	c := &consumer{t: t, name: command, db: filepath.Join(dir, "table.db")}
	command = strings.NewReplacer("localhost:9092", broker, "k8s table ", topic+" "+language+" ", "k8s", topic, "table.db", c.db).Replace(command)
	c.options = process.Options{Path: "sh", Args: []string{"-c", "exec " + command}, Dir: root, Log: filepath.Join(dir, "log")}
	if language == "go" {
		c.options.Env = append([]string{"GOTMPDIR=" + dir}, exampleprograms.GoEnv...)
		return c
	}
	_, fetched, err := exampleprograms.Fetched(language)
	if err != nil && os.Getenv("CI") != "true" {
		t.Skipf("%s: %v", c.name, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.options.Dir, c.options.Env = dir, javaOptions(dir)
	for _, from := range []string{root, fetched} { // the programs, and what the first command of the README has fetched
		files, err := os.ReadDir(from)
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if err := os.Symlink(filepath.Join(from, file.Name()), filepath.Join(dir, file.Name())); err != nil && !errors.Is(err, fs.ErrExist) {
				t.Fatal(err)
			}
		}
	}
	return c
}

// member is another one of its consumer group.
func (c *consumer) member() *consumer {
	other := *c
	other.name += " (another member)"
	other.options.Log = filepath.Join(c.t.TempDir(), "log")
	return &other
}

// language is the one that it is written in.
func (c *consumer) language() string { return strings.Fields(c.name)[0] }

// expectMembers waits until so many members of a group share all partitions.
func expectMembers(t *testing.T, broker *kafkatest.Broker, group string, members int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d members of the group %s", members, group), func() error {
		assigned, err := broker.Assigned(t.Context(), group)
		if err != nil {
			return err
		}
		sum := 0
		for _, n := range assigned {
			sum += n
		}
		if len(assigned) != members || slices.Contains(assigned, 0) || sum != partitions {
			return fmt.Errorf("the members have %v partitions", assigned)
		}
		return nil
	})
}

// Start starts it. With the test it is killed.
func (c *consumer) Start() {
	c.t.Helper()
	p, err := process.Start(c.options)
	if err != nil {
		c.t.Fatal(err)
	}
	c.process = p
	c.t.Cleanup(func() {
		p.Kill()
		if c.t.Failed() {
			c.t.Logf("log of %s:\n%s", c.name, p.LogTail())
		}
	})
}

// Restart kills it and starts it again.
func (c *consumer) Restart() {
	c.t.Helper()
	c.expectRunning()
	c.process.Kill()
	c.Start()
}

// expectRunning fails the test if it ended by itself.
func (c *consumer) expectRunning() {
	c.t.Helper()
	select {
	case <-c.process.Done():
		c.t.Fatalf("%s ended by itself: %v", c.name, c.process.Wait())
	default:
	}
}

// rows returns what a query finds in the database. Python reads it, so that the tests need no SQLite of their own.
func (c *consumer) rows(query string) ([][]any, error) {
	const script = `import json, sqlite3, sys
db = sqlite3.connect(sys.argv[1], timeout=60)
with db:
    print(json.dumps(db.execute(sys.argv[2]).fetchall()))`
	cmd := exec.CommandContext(c.t.Context(), "python3", "-c", script, c.db, query)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", c.name, err, stderr.Bytes())
	}
	var rows [][]any
	return rows, json.Unmarshal(out, &rows)
}
