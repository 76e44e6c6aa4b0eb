package kafka

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/segmentio/kafka-go"
	"github.com/segmentio/kafka-go/protocol"

	"github.com/kubeferry/kubeferry/sinks"
)

// TestPartition has the vectors of Kafka's own UtilsTest.testMurmur2.
func TestPartition(t *testing.T) {
	for key, hash := range map[string]int32{
		"21":                         -973932308,
		"foobar":                     -790332482,
		"a-little-bit-long-string":   -985981536,
		"a-little-bit-longer-string": -1486304829,
		"abc":                        479470107,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
	} {
		for _, n := range []int{1, 2, 3, 7, 12, 100, 1009} {
			ids := make([]int, n)
			for i := range ids {
				ids[i] = i
			}
			if got, want := partitionOf(key, ids), int(hash&0x7fffffff)%n; got != want {
				t.Errorf("%q of %d partitions: got %d, want %d", key, n, got, want)
			}
		}
	}
}

func TestTopic(t *testing.T) {
	fields := sinks.Fields{Cluster: "prod/eu 1", Resource: "pods", Namespace: "shöp", Name: "web", Type: "ADDED"}
	long := strings.Repeat("x", 250)
	for _, test := range []struct {
		template string
		fields   sinks.Fields
		want     string // empty: an error
	}{
		{"k8s.{group}.{resource}", fields, "k8s.core.pods"},
		{"k8s.{group}.{resource}", sinks.Fields{Group: "apps", Resource: "deployments"}, "k8s.apps.deployments"},
		{"{cluster}-{namespace}", fields, "prod_eu_1-sh__p"},
		{"a.{namespace}", sinks.Fields{}, "a._"},
		{"{name}", sinks.Fields{Name: "a.b-c_d"}, "a.b-c_d"},
		{"{name}", sinks.Fields{Name: ".."}, ""},
		{"{name}", sinks.Fields{Name: long}, ""},
		{"{name}", sinks.Fields{Name: long[1:]}, long[1:]},
	} {
		got, err := topicOf(sinks.NewTemplate(test.template), &sinks.Record{Fields: test.fields})
		if got != test.want {
			t.Errorf("%s: got %q, want %q", test.template, got, test.want)
		}
		if class := sinks.Classify(err); (test.want == "") != (class != nil && class.Permanent && class.Reason == sinks.ReasonEncode) {
			t.Errorf("%s: got error %v", test.template, err)
		}
	}
}

func TestSize(t *testing.T) {
	r := sinks.Record{Key: "12345", DedupID: "123", Body: []byte("1234"), Fields: sinks.Fields{Type: "DELETED"}}
	alone := len("kubeferry-dedup-id") + 3 + recordOverhead + headerOverhead
	for want, e := range map[int]*Config{
		alone + 5 + 4:   {Key: keyObject},
		alone + 4:       {Key: keyNone},
		2*(alone+5) + 4: {Key: keyObject, Tombstones: true},
	} {
		if got := e.sizeOf(&r); got != want {
			t.Errorf("%+v: got %d, want %d", e, got, want)
		}
	}
}

// TestWire checks that sizes are never less than what kafka-go writes.
func TestWire(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	text := func(most int) string { return strings.Repeat("x", random.IntN(most+1)) }
	for range 200 {
		e := Config{Key: keyObject, Tombstones: true}
		var records []*sinks.Record
		bound := batchOverhead
		for range 1 + random.IntN(300) {
			r := &sinks.Record{Key: text(300), DedupID: text(200), ContentType: text(40), Body: []byte(text(5000)), Headers: map[string]string{}}
			for h := range random.IntN(12) {
				r.Headers[fmt.Sprintf("ce_%d%s", h, text(20))] = text(200)
			}
			if random.IntN(2) == 0 {
				r.Attributes = map[string]string{"id": text(200), "subject": text(300)}
			}
			if random.IntN(2) == 0 {
				r.Fields.Type = "DELETED"
			}
			records = append(records, r)
			bound += e.sizeOf(r)
		}
		set := protocol.RecordSet{Version: 2, Records: kafka.NewRecordReader(e.messages(records)...)}
		var b bytes.Buffer
		if _, err := set.WriteTo(&b); err != nil {
			t.Fatal(err)
		}
		if got := b.Len() - 4; got > bound || got < bound*8/10-batchOverhead-64 { // 4: the length before the batch
			t.Fatalf("%d records: wrote %d bytes, reckoned with %d", len(records), got, bound)
		}
	}
}

func TestMessages(t *testing.T) {
	records := []*sinks.Record{
		{Key: "/a", DedupID: "p/1", ContentType: "application/json", Body: []byte("{}"), Headers: map[string]string{"ce_b": "2", "ce_a": "1"}},
		{Key: "/a", DedupID: "p/2", Body: []byte("gone"), Fields: sinks.Fields{Type: "DELETED"}},
		{Key: "/b", DedupID: "p/3"},
		{Key: "/b", DedupID: "p/4", ContentType: "application/json", Body: []byte("{}"), Attributes: map[string]string{"id": "4", "a": "100% ä"}},
	}
	var got []string
	for _, message := range (&Config{Key: keyObject, Tombstones: true}).messages(records) {
		got = append(got, show(t, &message))
	}
	want := []string{
		`"/a" "{}" content-type=application/json ce_a=1 ce_b=2 kubeferry-dedup-id=p/1`,
		`"/a" "gone" kubeferry-dedup-id=p/2`,
		`"/a" nil kubeferry-dedup-id=p/2`,
		`"/b" "" kubeferry-dedup-id=p/3`,
		`"/b" "{}" content-type=application/json ce_a=100% ä ce_id=4 kubeferry-dedup-id=p/4`,
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	if message := (&Config{Key: keyNone}).message(records[0], false); message.Key != nil {
		t.Errorf("got key %v, want none", message.Key)
	}
}

func show(t *testing.T, r *kafka.Record) string {
	t.Helper()
	text := func(b kafka.Bytes) string {
		if b == nil {
			return "nil"
		}
		content, err := kafka.ReadAll(b)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%q", content)
	}
	s := text(r.Key) + " " + text(r.Value)
	for _, h := range r.Headers {
		s += fmt.Sprintf(" %s=%s", h.Key, h.Value)
	}
	return s
}
