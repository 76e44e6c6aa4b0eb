package pipeline

import (
	"encoding/json"
	"reflect"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// Whatever a line of a file of dead letters holds, it is a letter that can be written and read again, or an error.
func FuzzLetter(f *testing.F) {
	letter := Letter{
		Pipeline: "p", Sink: "s", Reason: "too_large", Attempts: 3, First: time.Unix(1, 0).UTC(), Last: time.Unix(2, 0).UTC(),
		Record: sinks.Record{
			ID: "c/u/1/ADDED", Key: "/api/v1/pods/a", ContentType: "application/json", Headers: map[string]string{"a": "b"},
			Attributes: map[string]string{"id": "c/u/1/ADDED"}, Fields: sinks.Fields{Type: "ADDED", Resource: "pods"}, Body: []byte(`{"a":1}`),
		},
	}
	data, err := json.Marshal(letter)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"pipeline":"p","record":{"id":"x","body":null}}`))
	f.Add([]byte(`null`))
	f.Fuzz(func(t *testing.T, line []byte) {
		letter, err := DecodeLetter(line)
		if err != nil {
			return
		}
		data, err := json.Marshal(letter)
		if err != nil {
			return // a time that RFC 3339 cannot say
		}
		again, err := DecodeLetter(data)
		if err != nil || again.Pipeline != letter.Pipeline || again.Record.ID != letter.Record.ID || again.Record.Key != letter.Record.Key ||
			again.Attempts != letter.Attempts || again.Record.DedupID != letter.Record.DedupID || !reflect.DeepEqual(again.Record.Fields, letter.Record.Fields) {
			t.Errorf("got %+v and %v, want %+v", again, err, letter)
		}
	})
}
