package checkpoint

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	bolt "go.etcd.io/bbolt"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Whatever the file holds, reading it fails or gives an entry; it never panics and never allocates absurd memory.
func FuzzEntry(f *testing.F) {
	object, err := delta.NewObject([]byte(`{"metadata":{"name":"a"}}`))
	if err != nil {
		f.Fatal(err)
	}
	for _, e := range []delta.Entry{
		{Gap: &delta.Gap{Watch: "w"}},
		{Delta: &delta.Delta{Type: delta.Added, Resource: schema.GroupVersionResource{Resource: "r"}, Object: object, Observed: time.Unix(1, 0)}},
	} {
		data, err := encodeEntry(&e)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := decodeEntry(delta.LogKey{Seq: 1}, data)
		if err == nil && e.Gap == nil && (e.Delta == nil || e.Delta.Object == nil) {
			t.Errorf("got %+v without an error", e)
		}
	})
}

func FuzzKnown(f *testing.F) {
	f.Add([]byte("ns/name"), []byte{1, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte("/name"), []byte("\x025\x00uid"))
	f.Add([]byte("/name"), []byte("\x82\x035\x00uid"))
	f.Add([]byte("/name"), []byte("\xe2\x05\x035\x00uid"))
	f.Add([]byte("/name"), []byte("\x42\x055\x00uid"))
	f.Add([]byte("/name"), []byte("\x42\x80"))
	f.Add([]byte("/name"), []byte("\x8a\x03\x015\x00uid"))
	f.Fuzz(func(t *testing.T, key, value []byte) {
		k, err := decodeKnown(key, value)
		if err != nil {
			return
		}
		again, err := decodeKnown(appendKnownKey(nil, &k), appendKnown(nil, &k))
		if err != nil || !reflect.DeepEqual(again, k) {
			t.Errorf("got %+v and %v, want %+v", again, err, k)
		}
	})
}

// Whatever a file says of its run, of a watch, or of a log's size, it is opened, or set aside with a report; what it says
// of itself is never taken for granted. One that says that it has another format is left alone.
func FuzzFile(f *testing.F) {
	f.Add([]byte(`{"format":1,"clusterUID":"c","offset":1,"clean":true}`), []byte(`{"position":"9"}`), []byte(`{"entries":1,"bytes":9,"next":8}`))
	f.Add([]byte(`{"format":1}`), []byte(`{}`), []byte(`{"entries":1,"bytes":9,"next":7}`))
	f.Add([]byte(`{"format":1}`), []byte(`{}`), []byte(`{"entries":2,"bytes":9,"next":8}`))
	f.Add([]byte(`{"format":1,"rolledBack":true}`), []byte(`[]`), []byte(`{"entries":18446744073709551615,"bytes":-1,"next":0}`))
	f.Add([]byte(`{"format":2}`), []byte(`{`), []byte(`0`))
	f.Add([]byte(`{"format":1`), []byte(`{}`), []byte(`0`))
	f.Add([]byte{}, []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, info, watch, size []byte) {
		dir := t.TempDir()
		path := filepath.Join(dir, fileName)
		db, err := bolt.Open(path, 0o600, &bolt.Options{NoSync: true})
		if err != nil {
			t.Fatal(err)
		}
		err = db.Update(func(tx *bolt.Tx) error { return writeRaw(tx, info, watch, size) })
		if err := errors.Join(err, db.Close()); err != nil {
			t.Fatal(err)
		}
		reports := 0
		s, err := Open(dir, func(string, error) { reports++ })
		aside, _ := filepath.Glob(path + ".set-aside-*")
		var said Info
		if json.Unmarshal(info, &said) == nil && said.Format != format {
			if err == nil || len(aside)+reports > 0 {
				t.Errorf("got %v, %d reports, set aside %v", err, reports, aside)
			}
			return
		}
		if err != nil {
			t.Fatalf("neither opened nor set aside: %v", err)
		}
		defer s.Close()
		if len(aside) != reports || reports > 1 {
			t.Errorf("%d reports, set aside %v", reports, aside)
		}
		watches := 0
		err = s.Watches(func(string, []byte) error { watches++; return nil })
		if err != nil || watches != 1-reports || len(s.Logs()) != watches {
			t.Errorf("%d watches and %d logs after %d reports, %v", watches, len(s.Logs()), reports, err)
		}
		// Numbers go on behind what the log holds, or new entries would replace old ones.
		entries, err := s.ReadLog("p")
		if logged := s.Logs()["p"]; err != nil || len(entries) != watches || logged.Entries != uint64(watches) || watches == 1 && logged.Next <= entries[0].Seq {
			t.Errorf("got %+v for %d entries, %v", logged, len(entries), err)
		}
	})
}

// writeRaw makes a file with one watch and a log of one entry, and what is said of them as given.
func writeRaw(tx *bolt.Tx, info, watch, size []byte) error {
	var made []*bolt.Bucket
	for _, name := range []string{metaBucket, watchesBucket, logsBucket, logPrefix + "p", knownPrefix + "w"} {
		b, err := tx.CreateBucket([]byte(name))
		if err != nil {
			return err
		}
		made = append(made, b)
	}
	meta, watches, logs, log := made[0], made[1], made[2], made[3]
	entry, err := encodeEntry(&delta.Entry{LogKey: delta.LogKey{Seq: 7}, Gap: &delta.Gap{Watch: "w"}})
	if err != nil {
		return err
	}
	return errors.Join(meta.Put([]byte(metaKey), info), watches.Put([]byte("w"), watch), logs.Put([]byte("p"), size), log.Put(entryKey(delta.LogKey{Seq: 7}), entry))
}

// An entry has the names that earlier versions wrote and later ones read. With other names what waits in a log would be lost in part,
// and no error would say so.
func TestStoredNames(t *testing.T) {
	const json = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop","uid":"u","resourceVersion":"7"}}`
	object, err := delta.NewObject([]byte(json))
	if err != nil {
		t.Fatal(err)
	}
	resource := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	for _, tt := range []struct {
		entry      delta.Entry
		head, body string
	}{
		{delta.Entry{Gap: &delta.Gap{
			Watch: "w", Resource: resource, Namespace: "shop", From: "1", To: "2", Reason: "why",
			Observed: time.Unix(1, 2).UTC(),
		}}, `{"o":0,"g":{"Watch":"w","Resource":{"Group":"apps","Version":"v1","Resource":"deployments"},"Namespace":"shop",` +
			`"From":"1","To":"2","Reason":"why","Observed":"1970-01-01T00:00:01.000000002Z"}}`, ""},
		{delta.Entry{Mark: &delta.Mark{
			Watch: "w", Resource: resource, Namespace: "shop", SnapshotSequence: 9, Count: 3, Incomplete: true, Except: []string{"e"}, Observed: time.Unix(1, 2).UTC(),
		}}, `{"o":0,"k":{"Watch":"w","Resource":{"Group":"apps","Version":"v1","Resource":"deployments"},"Namespace":"shop","SnapshotSequence":9,` +
			`"Count":3,"Incomplete":true,"Except":["e"],"Observed":"1970-01-01T00:00:01.000000002Z"}}`, ""},
		{delta.Entry{Delta: &delta.Delta{
			Type: delta.Deleted, Resource: resource, Watch: "w", Object: object.WithJSON([]byte(`{}`)), Observed: time.Unix(1, 2), Snapshot: true, SnapshotSequence: 7,
			Inferred: true, FinalStateUnknown: true, Bare: true, Custom: true, Sequence: 8, Restored: 2,
			Difference: &delta.Difference{Known: true, OldResourceVersion: "6", OldObject: []byte(`{"a":1}`), Patch: []byte(`[]`)},
		}, Unsendable: "why"}, `{"t":"DELETED","r":{"Group":"apps","Version":"v1","Resource":"deployments"},` +
			`"w":"w","o":1000000002,"s":true,"y":7,"i":true,"u":true,"b":true,"x":true,"z":8,"h":2,"e":"why",` +
			`"n":{"v":"apps/v1","k":"Deployment","s":"shop","n":"web","u":"u","r":"7"},"m":1667651564,"d":{"k":true,"r":"6","o":7,"p":2}}`, `{"a":1}[]{}`},
		{
			delta.Entry{Delta: &delta.Delta{Type: delta.Added, Resource: resource, Watch: "w", Object: object, Observed: time.Unix(1, 2)}},
			`{"t":"ADDED","r":{"Group":"apps","Version":"v1","Resource":"deployments"},"w":"w","o":1000000002,` +
				`"n":{"v":"apps/v1","k":"Deployment","s":"shop","n":"web","u":"u","r":"7"},"m":3277659657}`, json,
		},
		{
			delta.Entry{Delta: &delta.Delta{Type: delta.Added, Resource: resource, Watch: "w", Object: object.WithChangedBy([]byte(`[{"manager":"a"}]`)), Observed: time.Unix(1, 2)}},
			`{"t":"ADDED","r":{"Group":"apps","Version":"v1","Resource":"deployments"},"w":"w","o":1000000002,` +
				`"n":{"v":"apps/v1","k":"Deployment","s":"shop","n":"web","u":"u","r":"7"},"q":[{"manager":"a"}],"m":3277659657}`, json,
		},
	} {
		data := append(binary.AppendUvarint(nil, uint64(len(tt.head))), tt.head...)
		if tt.entry.Delta != nil {
			data = append(data, s2.Encode(nil, []byte(tt.body))...)
		}
		if got, err := encodeEntry(&tt.entry); err != nil || !bytes.Equal(got, data) {
			t.Errorf("got %q, %v, want %q", got, err, data)
		}
		if got, err := decodeEntry(delta.LogKey{}, data); err != nil || !reflect.DeepEqual(got, tt.entry) {
			t.Errorf("got %+v, %v, want %+v", got, err, tt.entry)
		}
	}
}

// What a pipeline made of a delta comes back as it was, though the object's JSON may not tell whose it is.
func TestEntryKeepsWhatAPipelineMade(t *testing.T) {
	object, err := delta.NewObject([]byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"shop","uid":"u","resourceVersion":"7"}}`))
	if err != nil {
		t.Fatal(err)
	}
	resource := schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
	deep := []byte(`{"spec":` + strings.Repeat("[", 9_999) + strings.Repeat("]", 9_999) + `}`) // as the API server takes it
	patch := slices.Concat([]byte(`[{"op":"replace","path":"","value":`), deep, []byte(`}]`))
	for _, want := range []delta.Delta{
		{Object: object.WithJSON(deep), Difference: &delta.Difference{Known: true, OldResourceVersion: "6", OldObject: deep, Patch: patch}},
		{Object: object.WithJSON([]byte(`{"spec":{}}`))},
		{Object: object, Difference: &delta.Difference{}},
		{Object: object, Difference: &delta.Difference{Known: true, OldResourceVersion: "6", Patch: []byte(`[]`)}},
		{Object: object.WithJSON([]byte(`{}`)), Difference: &delta.Difference{Known: true, OldResourceVersion: "6", OldObject: []byte(`{"spec":{}}`)}},
		{Object: object.Identity(), Bare: true},
		{Object: object, Sequence: math.MaxUint64},
	} {
		want.Type, want.Resource, want.Watch, want.Observed = delta.Modified, resource, "w", time.Unix(1, 2)
		data, err := encodeEntry(&delta.Entry{LogKey: delta.LogKey{Seq: 3}, Delta: &want})
		if err != nil {
			t.Fatal(err)
		}
		entry, err := decodeEntry(delta.LogKey{Seq: 3}, data)
		if err != nil {
			t.Fatal(err)
		}
		got := *entry.Delta
		if string(got.Object.JSON()) != string(want.Object.JSON()) || got.ID("c") != want.ID("c") || got.Ref() != want.Ref() || got.Object.Kind() != "Deployment" {
			t.Errorf("got %s %s, want %s %s", got.ID("c"), got.Object.JSON(), want.ID("c"), want.Object.JSON())
		}
		got.Object, want.Object = nil, nil
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		for n := range data { // cut short or damaged, it is an error or an entry, and never a panic
			_, _ = decodeEntry(delta.LogKey{Seq: 3}, data[:n])
		}
	}
}

// What is retained of an object stays until the object is gone, or nothing is to be retained of it.
func TestPrevious(t *testing.T) {
	s, err := Open(t.TempDir(), func(message string, err error) { t.Fatal(message, err) })
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	known := delta.Known{Namespace: "ns", Name: "a", Version: delta.NewVersion("uid", "5")}
	write := func(want string, change delta.WatchChange) {
		t.Helper()
		change.Watch, change.Meta = "w", []byte("{}")
		if err := s.Commit(&Commit{Watches: []delta.WatchChange{change}}); err != nil {
			t.Fatal(err)
		}
		previous, err := s.Previous("w", "ns", "a")
		if err != nil || string(previous) != want {
			t.Errorf("got %q, %v; want %q", previous, err, want)
		}
		err = s.Known("w", func(k delta.Known) {
			if k.Retained != (want != "") || k.Previous != nil {
				t.Errorf("got %+v", k)
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
	put := func(retained bool, previous string) delta.WatchChange {
		k := known
		if k.Retained = retained; previous != "" {
			k.Previous = []byte(previous)
		}
		return delta.WatchChange{Put: []delta.Known{k}}
	}
	write("", put(false, ""))
	write("kept", put(true, "kept"))
	write("kept", put(true, "")) // the file has it
	write("", put(false, ""))
	write("again", put(true, "again"))
	write("", delta.WatchChange{Remove: []delta.Known{known}})
}
