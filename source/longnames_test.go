package source

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// long returns a name of 253 bytes.
func long(name string) string { return name + strings.Repeat("-", 253-len(name)) }

// A table that commits record has hashes in place of long names, and of names that look like one: equal ones for equal names only.
func TestEntryOf(t *testing.T) {
	recorded, other := newKnownSet(true, NewPreviousVersions(0)), newKnownSet(false, NewPreviousVersions(0))
	seen := map[string]string{}
	for _, name := range []string{"", "a", strings.Repeat("a", longestName), strings.Repeat("a", longestName+1), long("a"), long("b"), "/", "/0123456789abcdef", strings.Repeat("a", 1000)} {
		key := keyOfKnown(&delta.Known{Namespace: "ns", Name: name})
		entry := recorded.entryOf(key)
		hashed := len(name) > longestName || strings.HasPrefix(name, "/")
		if recorded.isHashed(entry) != hashed || hashed && len(entry.name) != 1+hashSize || !hashed && entry.name != name || entry != recorded.entryOf(key) {
			t.Errorf("%q has the entry %q", name, entry.name)
		}
		if hashed && recorded.entryOf(objectKey(entry)) == entry {
			t.Errorf("an object with the name %q would be %q", entry.name, name)
		}
		if others := other.entryOf(key); others.name != name || other.isHashed(others) {
			t.Errorf("%q has the entry %q where nothing is recorded", name, others.name)
		}
		if before, taken := seen[entry.name]; taken {
			t.Errorf("%q and %q have one entry", before, name)
		}
		seen[entry.name] = name
	}
}

// What is inferred of objects with long names is sent as that of others, also if the store could not be read at first.
func TestLongNames(t *testing.T) {
	// 11 to 17
	names := []string{"shop/" + long("a"), "shop/b", "team/" + long("c"), "team/d", "shop/" + long("e"), "shop/" + long("f"), "shop/" + long("g")}
	snapshot := []string{"u11/11/ADDED+s", "u12/12/ADDED+s", "u13/13/ADDED+s", "u14/14/ADDED+s", "u15/15/ADDED+s", "u16/16/ADDED+s", "u17/17/ADDED+s"}
	including := func(namespaces ...string) func(*Options, *life) {
		return func(o *Options, _ *life) { o.Namespaces = delta.Namespaces{Include: namespaces} }
	}
	read := func(t *testing.T, m *memory, least int) {
		t.Helper()
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.pages < least || m.pagesFail > 0 {
			t.Errorf("%d pages were read, and %d were still to fail", m.pages, m.pagesFail)
		}
	}
	for name, test := range map[string]func(t *testing.T, server *sourcetest.Server, m *memory){
		"deleted in a gap": func(t *testing.T, server *sourcetest.Server, m *memory) {
			server.Write(names[0], true)  // 18
			server.Write(names[1], true)  // 19
			server.Write(names[4], true)  // 20
			server.Write(names[4], false) // 21
			server.Write(names[5], false) // 22
			server.Write(names[6], true)  // 23
			server.Compact()              // 24
			l := live(t, server, m, []string{"p"}, nil)
			l.expectSet("p", "gap 17-24", "u11/11/DELETED+i", "u12/12/DELETED+i", "u15/15/DELETED+i", "u16/22/MODIFIED+i", "u17/17/DELETED+i", "u21/21/ADDED+i")
			l.stop()
			read(t, m, 3)
			m.pages = 0
			server.Write(names[1], false)              // 25
			server.Write(names[1], true)               // 26
			server.Compact()                           // 27
			l = live(t, server, m, []string{"p"}, nil) // nothing is unseen
			l.expectSet("p", "gap 24-27")
			l.watching(27)
			l.stop()
			if m.pages > 0 {
				t.Errorf("%d pages were read for nothing", m.pages)
			}
		},
		"deleted in a gap behind what is not committed": func(t *testing.T, server *sourcetest.Server, m *memory) {
			l := live(t, server, m, []string{"p"}, nil)
			l.watching(17)
			server.Write(names[0], true)  // 18
			server.Write(names[0], false) // 19
			server.Write(names[4], false) // 20
			l.watching(20)
			m.pages = 0
			server.Away(func() {
				server.Write(names[0], true) // 21
				server.Write(names[2], true) // 22
				server.Write(names[4], true) // 23
				server.Compact()             // 24
			})
			l.expectSet("p", "gap 20-24", "u11/18/DELETED", "u13/13/DELETED+i", "u15/20/DELETED+i", "u15/20/MODIFIED", "u19/19/ADDED", "u19/19/DELETED+i")
			l.stop()
			read(t, m, 1)
		},
		"in a resource that is gone": func(t *testing.T, server *sourcetest.Server, m *memory) {
			l := live(t, server, m, []string{"p"}, nil)
			l.watching(17)
			server.SetMissing(true)
			l.expectSet("p", "gap 17-", "u11/11/DELETED+i", "u12/12/DELETED+i", "u13/13/DELETED+i", "u14/14/DELETED+i", "u15/15/DELETED+i", "u16/16/DELETED+i", "u17/17/DELETED+i")
			l.stop()
			read(t, m, 3)
		},
		"left out by an edited selection": func(t *testing.T, server *sourcetest.Server, m *memory) {
			server.Write(names[3], true) // 18
			l := live(t, server, m, []string{"p"}, including("shop", "zoo*"))
			l.snapshotsDone()
			l.watching(18)
			got := strings.Join(l.sorted("p"), " ")
			if !strings.Contains(got, " u13/13/DELETED+i+left u14/14/DELETED+i+left") {
				t.Errorf("got %s", got)
			}
			l.stop()
			read(t, m, 1)
			for key := range m.known[l.source.all()[0].id] {
				if strings.HasPrefix(key, "team/") {
					t.Errorf("%s is still known", key)
				}
			}
		},
		"of a snapshot that was interrupted": func(t *testing.T, server *sourcetest.Server, m *memory) {
			l := live(t, server, m, []string{"p"}, func(o *Options, l *life) {
				o.Snapshot, l.room = delta.SnapshotAlways, map[string]int{"p": 1}
			})
			l.expect("p", snapshot[0])
			read(t, m, 2)
			l.capture()
			due := 0
			for _, k := range m.known[l.source.all()[0].id] {
				due += int(k.Due)
			}
			if due != 6 {
				t.Errorf("%d objects are due in the store, want 6", due)
			}
			l.stop()
			l = live(t, server, m, []string{"p"}, nil)
			l.expectSet("p", snapshot[1:]...)
			l.stop()
		},
	} {
		for _, failures := range []int{0, 3} {
			t.Run(name, func(t *testing.T) {
				server, m := things(t, names...), newMemory()
				l := live(t, server, m, []string{"p"}, including())
				l.expectSet("p", snapshot...)
				l.snapshotsDone()
				l.stop()
				m.pagesFail = failures
				test(t, server, m)
			})
		}
	}
}

// What waits for the store is reported, and ends with the watch.
func TestNamesThatCannotBeRead(t *testing.T) {
	server, m := things(t, long("a"), long("b")), newMemory()
	l := live(t, server, m, []string{"p"}, nil)
	l.watching(12)
	l.snapshotsDone()
	l.stop()
	server.Write(long("a"), true) // 13
	server.Compact()
	m.pagesFail = 1 << 30
	var lines bytes.Buffer
	l = live(t, server, m, []string{"p"}, func(o *Options, l *life) {
		o.Backoff = wait.Backoff{Duration: 1, Steps: 1 << 20, Factor: 1}
		l.logger = slog.New(slog.NewTextHandler(&lines, &slog.HandlerOptions{Level: slog.LevelError}))
	})
	eventually(t, func() string {
		m.mu.Lock()
		defer m.mu.Unlock()
		if m.pagesFail == 1<<30 {
			return "the names are not read"
		}
		return ""
	})
	l.stop()
	if got := strings.Count(lines.String(), "cannot read names"); got != 1 {
		t.Errorf("got %d lines in\n%s", got, &lines)
	}
	m.pagesFail = 0
	l = live(t, server, m, []string{"p"}, nil)
	l.expectSet("p", "gap 12-14", "u11/11/DELETED+i") // nothing was forgotten
}
