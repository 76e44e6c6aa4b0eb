package e2e_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// reader returns everything that a sink has taken so far, in order.
type reader func() []oracle.Record

// hookReader reads what a receiver accepted. Only what is new since the last call is parsed.
func hookReader(tb testing.TB, r *webhooktest.Receiver, parse func(header http.Header, body []byte) (oracle.Record, error)) reader {
	var mu sync.Mutex
	var records []oracle.Record
	requests := 0
	return func() []oracle.Record {
		mu.Lock()
		defer mu.Unlock()
		all := r.Requests()
		for _, request := range all[requests:] {
			if request.Status/100 != 2 {
				continue
			}
			for _, part := range request.Records {
				record, err := parse(request.Header, part.Body)
				if err != nil {
					tb.Errorf("%v", err)
				}
				records = append(records, record)
			}
		}
		requests = len(all)
		return records
	}
}

// cloudEvents, plainJSON and raw parse the formats.
func cloudEvents(_ http.Header, body []byte) (oracle.Record, error) {
	return oracle.ParseCloudEvent(body)
}

func plainJSON(_ http.Header, body []byte) (oracle.Record, error) { return oracle.ParseJSON(body) }

func raw(header http.Header, body []byte) (oracle.Record, error) {
	return oracle.ParseRaw(header.Get, body)
}

// binaryEvents parses events whose attributes are in headers, each behind prefix.
func binaryEvents(prefix string) func(http.Header, []byte) (oracle.Record, error) {
	return func(header http.Header, body []byte) (oracle.Record, error) {
		event := map[string]any{"data": json.RawMessage(body), "datacontenttype": header.Get("Content-Type")}
		for name, values := range header {
			if attribute, ok := strings.CutPrefix(strings.ToLower(name), prefix); ok {
				event[attribute] = values[0]
			}
		}
		structured, err := json.Marshal(event)
		if err != nil {
			return oracle.Record{}, err
		}
		return oracle.ParseCloudEvent(structured)
	}
}

// lineReader reads a file of JSON lines.
func lineReader(tb testing.TB, file string, parse func(body []byte) (oracle.Record, error)) reader {
	return func() []oracle.Record {
		text, err := os.ReadFile(file)
		if err != nil && !os.IsNotExist(err) {
			tb.Fatal(err)
		}
		var records []oracle.Record
		for line := range bytes.Lines(text) {
			if !bytes.HasSuffix(line, []byte("\n")) {
				break // being written
			}
			record, err := parse(line)
			if err != nil {
				tb.Errorf("%v", err)
			}
			records = append(records, record)
		}
		return unmarked(records)
	}
}

// unmarked leaves out the marks of snapshots, as a receiver of webhooks does.
func unmarked(records []oracle.Record) []oracle.Record {
	return slices.DeleteFunc(records, func(r oracle.Record) bool { return r.Type == oracle.Mark })
}

// of returns the records of one object, as "TYPE version", with the flags that are set.
func of(records []oracle.Record, name string) []string {
	var found []string
	for _, r := range records {
		if r.Name != name {
			continue
		}
		text := r.Type
		if r.Snapshot {
			text += " snapshot"
		}
		if r.Inferred {
			text += " inferred"
		}
		found = append(found, text)
	}
	return found
}

// find returns the first record of an object that has a type.
func find(records []oracle.Record, name, typ string) (oracle.Record, error) {
	for _, r := range records {
		if r.Name == name && r.Type == typ {
			return r, nil
		}
	}
	return oracle.Record{}, fmt.Errorf("no %s of %s", typ, name)
}

// wait returns the first record of an object that has a type, once it is there.
func wait(tb testing.TB, read reader, name, typ string) oracle.Record {
	tb.Helper()
	var found oracle.Record
	eventually(tb, wide, typ+" of "+name, func() (err error) {
		found, err = find(read(), name, typ)
		return err
	})
	return found
}
