package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks"
)

// formats are the formats and profiles, by name.
func formats() map[string]shape.Options {
	made := map[string]shape.Options{}
	for _, format := range []shape.Format{shape.FormatCloudEvents, shape.FormatCloudEventsBinary, shape.FormatJSON, shape.FormatRaw} {
		for _, profile := range []shape.Profile{shape.ProfileKubeferry, shape.ProfileKnative} {
			made[string(format)+" "+string(profile)] = shape.Options{Name: "audit", Cluster: "prod-eu-1", Format: format, Profile: profile}
		}
	}
	return made
}

// TestLetters writes a dead letter of every record and reads it again: a replay sends the same.
func TestLetters(t *testing.T) {
	d := change(t, "a", 7)
	d.Object = version(t, 7, `"note":"\"ä\" <b>"`)
	for name, options := range formats() {
		encoder := shape.NewEncoder(options)
		for kind, entry := range map[string]delta.Entry{
			"delta": {Delta: d},
			"gap":   {Gap: &delta.Gap{Watch: "w", Resource: pods, Namespace: "shop", From: "1", To: "9", Reason: "Expired", Observed: d.Observed}},
			"mark":  {Mark: &delta.Mark{Watch: "w", Resource: pods, SnapshotSequence: 9, Count: 3, Observed: d.Observed}},
		} {
			record, _, _ := encoder.Encode(nil, &entry)
			line, err := json.Marshal(Letter{Pipeline: "audit", Sink: "hook", Record: record})
			if err != nil {
				t.Fatal(err)
			}
			letter, err := DecodeLetter(line)
			if err != nil {
				t.Fatal(err)
			}
			want := record
			want.DedupID = "audit/" + record.ID // a replay has an id of its own for transports
			got := letter.Record
			if !sameJSON(t, got.Body, want.Body) {
				t.Errorf("%s, %s: got %s, want %s", name, kind, got.Body, want.Body)
			}
			if got.Body, want.Body = nil, nil; !reflect.DeepEqual(got, want) {
				t.Errorf("%s, %s: got\n%+v\nwant\n%+v", name, kind, got, want)
			}
		}
	}
}

func sameJSON(t *testing.T, a, b []byte) bool {
	t.Helper()
	var x, y any
	if err := errors.Join(json.Unmarshal(a, &x), json.Unmarshal(b, &y)); err != nil {
		t.Fatal(err)
	}
	return reflect.DeepEqual(x, y)
}

// TestSecretsInFormats sends a Secret and its change through pipelines of every format and difference, and searches all
// that the sinks get, and all dead letters.
func TestSecretsInFormats(t *testing.T) {
	secrets := schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	planted := []string{"b2xkLXBhc3N3b3Jk", "old-password", "bmV3LXBhc3N3b3Jk", "new-password"}
	object := func(version, coded, plain string) *delta.Object {
		object, err := delta.NewObject(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s","namespace":"shop","uid":"u","resourceVersion":%q,"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{\"data\":{\"p\":\"%s\"}}"}},"data":{"p":%q},"stringData":{"q":%q}}`,
			version, coded, coded, plain))
		if err != nil {
			t.Fatal(err)
		}
		return object
	}
	before, after := object("7", planted[0], planted[1]), object("8", planted[2], planted[3])
	for name, options := range formats() {
		for _, diff := range []shape.Diff{shape.DiffNone, shape.DiffOldObject, shape.DiffJSONPatch, shape.DiffMergePatch} {
			t.Run(name+" "+string(diff), func(t *testing.T) {
				var mu sync.Mutex
				var got []string
				sink := &script{answer: func(_ int, batch []sinks.Record) error {
					mu.Lock()
					defer mu.Unlock()
					for i := range batch {
						got = append(got, fmt.Sprintf("%+v %s %s", batch[i], batch[i].Body, batch[i].Structured()))
					}
					return sinks.Permanent(sinks.ReasonRejected, errors.New("no"))
				}}
				dead := &letters{}
				p := start(t, sink, dead, func(o *Options) {
					o.Format, o.Profile, o.Diff, o.Redactor = options.Format, options.Profile, diff, shape.NewRedactor([]byte("key"), "c")
				})
				for _, d := range []*delta.Delta{
					{Type: delta.Added, Resource: secrets, Object: before, Observed: time.Now()},
					{Type: delta.Modified, Resource: secrets, Object: after, Old: before, Observed: time.Now()},
				} {
					if err := p.Delta(t.Context(), d); err != nil {
						t.Fatal(err)
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				if left := p.Drain(ctx); left != 0 {
					t.Fatalf("%d deltas are left", left)
				}
				for _, letter := range dead.got {
					line, err := json.Marshal(letter)
					if err != nil {
						t.Fatal(err)
					}
					got = append(got, string(line))
				}
				text := strings.Join(got, "\n")
				if got := strings.Count(text, "redacted:hmac-sha256:"); got < 12 || len(dead.got) != 2 {
					t.Errorf("got %d digests and %d dead letters, want 2 records and 2 letters: %s", got, len(dead.got), text)
				}
				for _, secret := range planted {
					if strings.Contains(text, secret) {
						t.Errorf("%s shows in %s", secret, text)
					}
				}
			})
		}
	}
}
