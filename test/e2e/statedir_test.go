package e2e_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	bolt "go.etcd.io/bbolt"

	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestStateFileCutShort cuts the state file of a killed kubeferry off at several places, and damages it. Either all of it was there, or
// the file is set aside as it was, the log reports it, and what exists is sent from the beginning: no loss in silence. What can be
// read of that file, `kubeferry state recover` writes.
func TestStateFileCutShort(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "cut")
	kinds := []load.Resource{load.ConfigMaps()}
	hook := webhooktest.Start(t)
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	text := func(dir, url string) string {
		return fmt.Sprintf("stateDir: %q\n", dir) + hookConfig("[v1/configmaps]", fmt.Sprintf("{include: [%s]}", namespace), url)
	}
	dir := t.TempDir()
	e := startExporter(t, plane(t).KubeconfigFile(), text(dir, hook.URL()))
	e.WaitReady()
	opts := load.Options{Resources: kinds, Namespaces: []string{namespace}, Operations: 200, Seed: 50}
	all := runLoad(t, config, opts)
	e.WaitSettled(wide)
	hook.Use(webhooktest.Status(http.StatusServiceUnavailable))
	opts.Operations, opts.Seed = 200, 51
	more := runLoad(t, config, opts)
	all.UIDs = append(all.UIDs, more.UIDs...)
	e.WaitWaiting(wide, 150)
	eventually(t, wide, "the log holds what waits", func() error {
		if size := e.Metrics().sum("kubeferry_log_bytes"); size < 100<<10 {
			return fmt.Errorf("log_bytes is %v", size)
		}
		return nil
	})
	e.Kill()
	taken := hookReader(t, hook, cloudEvents)() // all of it: what was settled last may have been followed by more
	whole, err := os.ReadFile(filepath.Join(dir, "kubeferry.db"))
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(dir, "redaction.key"))
	if err != nil {
		t.Fatal(err)
	}

	restored, aside := 0, 0
	damaged := bytes.ReplaceAll(whole, []byte(`{"entries":`), []byte(`{"damaged":`)) // how many are in the log
	waited, inLog := map[string]bool{}, 0                                            // of the whole file
	for _, content := range [][]byte{
		whole, whole[:len(whole)-1], whole[:len(whole)/2], whole[:len(whole)/3], whole[:3*4096+100], whole[:4096], whole[:1], nil, damaged,
	} {
		size := len(content)
		dir := t.TempDir()
		for name, content := range map[string][]byte{"kubeferry.db": content, "redaction.key": key} {
			if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		hook := webhooktest.Start(t)
		e := startExporter(t, plane(t).KubeconfigFile(), text(dir, hook.URL()))
		e.WaitReady()
		e.WaitSettled(wide)
		records := hookReader(t, hook, cloudEvents)
		found, _ := filepath.Glob(filepath.Join(dir, "*.set-aside-*"))
		said := e.Logged("set aside")
		switch {
		case len(found) == 0: // what was cut off was free
			restored++
			expectAll(t, watched, all, func() []oracle.Record { return slices.Concat(taken, records()) }, oracle.CompareOptions{})
			if len(said) > 0 {
				t.Errorf("%d bytes: the log says %v, and nothing is set aside", size, said)
			}
			inLog = int(e.Metrics().sum("kubeferry_deltas_restored_total"))
			for _, r := range records() {
				waited[r.ID] = true
			}
		default:
			aside++
			if left, err := os.ReadFile(found[0]); len(found) != 1 || err != nil || !bytes.Equal(left, content) {
				t.Errorf("%d bytes: set aside %v, %v, want one as it was", size, found, err)
			}
			if len(said) != 1 || said[0]["level"] != "ERROR" || said[0]["err"] == nil {
				t.Errorf("%d bytes: the log says %v", size, said)
			}
			if gaps := gapsOf(records()); len(gaps) != 1 || gaps[0].From != "" {
				t.Errorf("%d bytes: gaps %+v", size, gaps)
			}
			for _, r := range records() {
				if !r.Snapshot && r.Type != oracle.Gap {
					t.Errorf("%d bytes: %s is no snapshot", size, r.ID)
				}
			}
			expectState(t, config, records(), load.GVRs(kinds), namespace)
			file, letters := writeConfig(t, t.TempDir(), text(dir, hook.URL())), filepath.Join(t.TempDir(), "letters.jsonl")
			output, code := runProgram(t, "sh", "-c", `"$0" state recover --config "$1" "$2" > "$3"`, raceBinary(t), file, found[0], letters)
			recovered := readLetters(t, letters)
			for _, l := range recovered {
				if !waited[l.Record.ID] {
					t.Errorf("%d bytes: %s was recovered, and did not wait", size, l.Record.ID)
				}
			}
			count := fmt.Sprintf("%d undelivered entries and 0 dead letters", len(recovered))
			if !strings.Contains(fmt.Sprint(said), "cannot be used; "+count) || size == len(whole) && len(recovered) != inLog {
				t.Errorf("%d bytes: %s of %d were recovered, and the log says %v", size, count, inLog, said)
			}
			if cut := size < len(whole); (code != 0) != cut {
				t.Errorf("%d bytes: recover ends with %d and\n%s", size, code, output)
			}
		}
		e.Stop()
	}
	t.Logf("%d files restored, %d set aside, of %d bytes", restored, aside, len(whole))
	if restored == 0 || aside < 5 {
		t.Errorf("%d files restored, %d set aside", restored, aside)
	}
}

// TestStateDirectoryReadOnly gives kubeferry a state directory that cannot be written: it ends with a clear error
// before it delivers anything, and leaves everything as it was for a start that can write.
func TestStateDirectoryReadOnly(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "readonly")
	kinds := []load.Resource{load.ConfigMaps()}
	hook := webhooktest.Start(t)
	watched := startOracle(t, config, oracle.Options{Resources: load.GVRs(kinds), Namespaces: []string{namespace}})
	dir := t.TempDir()
	text := fmt.Sprintf("stateDir: %q\n", dir) + hookConfig("[v1/configmaps]", fmt.Sprintf("{include: [%s]}", namespace), hook.URL())
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	opts := load.Options{Resources: kinds, Namespaces: []string{namespace}, Operations: 100, Seed: 52}
	all := runLoad(t, config, opts)
	e.WaitSettled(wide)
	e.Stop()
	opts.Operations, opts.Seed = 100, 53
	more := runLoad(t, config, opts)
	all.UIDs = append(all.UIDs, more.UIDs...)
	before := len(hook.Requests())

	for name, state := range map[string]string{"with a state": dir, "empty": t.TempDir()} {
		file := writeConfig(t, t.TempDir(), strings.Replace(text, dir, state, 1))
		output, code := runReadOnly(t, state, "run", "--config", file, "--kubeconfig", plane(t).KubeconfigFile())
		if code != 1 || !strings.Contains(output, state) || !strings.Contains(output, "read-only file system") && !strings.Contains(output, "permission denied") {
			t.Errorf("%s: exit code %d, want 1 and what is wrong with %s:\n%s", name, code, state, output)
		}
		if strings.Contains(output, "set aside") {
			t.Errorf("%s: something was set aside:\n%s", name, output)
		}
	}
	if n := len(hook.Requests()) - before; n > 0 {
		t.Errorf("%d requests without a state", n)
	}

	e = startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	report := expectAll(t, watched, all, hookReader(t, hook, cloudEvents), oracle.CompareOptions{})
	t.Log(report)
	if len(report.Duplicates) > 0 {
		t.Errorf("repeated: %v", report.Duplicates)
	}
}

// runReadOnly runs the program to its end with a directory that it cannot write. Root can write any, so for root it is a
// read-only mount in a namespace of its own, which ends with the program.
func runReadOnly(tb testing.TB, dir string, args ...string) (output string, code int) {
	tb.Helper()
	binary := raceBinary(tb)
	if os.Getuid() == 0 {
		const script = `mount --bind "$0" "$0" && mount -o remount,bind,ro "$0" && exec "$@"`
		return runProgram(tb, "unshare", slices.Concat([]string{"--mount", "--propagation", "private", "sh", "-c", script, dir, binary}, args)...)
	}
	if err := os.Chmod(dir, 0o500); err != nil {
		tb.Fatal(err)
	}
	defer func() { _ = os.Chmod(dir, 0o700) }()
	return runProgram(tb, binary, args...)
}

// TestExtendedDamagedLogEntry damages one record in the log of a killed run. It becomes a dead letter with its identity; the records
// before and behind it arrive, and so do those of the same object that follow.
func TestExtendedDamagedLogEntry(t *testing.T) {
	beside(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "damaged")
	objects := objectsIn(t, config, configMaps, namespace)
	hook := webhooktest.Start(t)
	hook.Use(webhooktest.Status(http.StatusServiceUnavailable))
	dir, letters := t.TempDir(), filepath.Join(t.TempDir(), "dead.jsonl")
	text := fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}, snapshot: never}]
pipelines: [{name: p, sink: hook, deadLetter: dead}]
sinks: [{name: hook, webhook: {url: %q}}, {name: dead, file: {path: %q}}]
`, dir, namespace, hook.URL(), letters)
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	objects.Create("first", data("1"))
	damaged := objects.Create("damaged", data("1"))
	objects.Create("last", data("1"))
	e.WaitWaiting(wide, 3)
	logBytes := func() float64 { return e.Metrics().sum("kubeferry_log_bytes") }
	for range 2 { // a commit after another: all that came before is in the log
		before := logBytes()
		eventually(t, wide, "a commit", func() error {
			objects.Patch("last", data(noise(100)))
			if logBytes() <= before {
				return errors.New("the log does not grow")
			}
			return nil
		})
	}
	e.Kill()

	db, err := bolt.Open(filepath.Join(dir, "kubeferry.db"), 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		log := tx.Bucket([]byte("log/p"))
		cursor := log.Cursor()
		for key, value := cursor.First(); key != nil; key, value = cursor.Next() {
			if bytes.Contains(value, []byte(damaged.GetUID())) {
				value = bytes.Clone(value)
				value[len(value)-9] ^= 1
				return log.Put(key, value)
			}
		}
		return errors.New("the log does not have the record")
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}

	hook.Use(webhooktest.Accept())
	e = startExporter(t, plane(t).KubeconfigFile(), text)
	e.WaitReady()
	objects.Patch("damaged", data("2"))
	read := hookReader(t, hook, cloudEvents)
	wait(t, read, "damaged", oracle.Modified)
	e.WaitSettled(wide)
	for name, want := range map[string][]string{"first": {"ADDED"}, "damaged": {"MODIFIED"}} {
		if got := of(read(), name); !slices.Equal(got, want) {
			t.Errorf("%s: %q arrived, want %q", name, got, want)
		}
	}
	if got := of(read(), "last"); len(got) < 3 || got[0] != "ADDED" {
		t.Errorf("last: %q arrived", got)
	}
	id := fmt.Sprintf("%s/%s/%s/ADDED", clusterName, damaged.GetUID(), damaged.GetResourceVersion())
	if dead := readLetters(t, letters); len(dead) != 1 || dead[0].Record.ID != id || !strings.Contains(dead[0].Error, "cannot be read") {
		t.Errorf("got the dead letters %+v, want one of %s", dead, id)
	}
}
