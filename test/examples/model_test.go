package examples_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubeferry/kubeferry/test/kafkatest"
)

// arrival is a change, or the mark of a snapshot if it has no subject.
type arrival struct {
	cluster, pipeline, subject, uid, typ, namespace string
	version, sequence, snapshot                     int
	complete                                        bool
}

func (a *arrival) id() string {
	if a.subject == "" {
		return fmt.Sprintf("%s/w%s/%d/SNAPSHOT", a.cluster, a.namespace, a.snapshot)
	}
	return fmt.Sprintf("%s/%s/%d/%s", a.cluster, a.uid, a.version, a.typ)
}

func (a *arrival) event() string {
	data, subject := fmt.Sprintf(`"type":%q,"object":{}`, a.typ), a.subject
	if subject == "" {
		subject = "/api/v1/configmaps"
		data = fmt.Sprintf(`"type":"SNAPSHOT","phase":"completed","namespace":%q,"count":1,"complete":%t`, a.namespace, a.complete)
	}
	more := fmt.Sprintf(`"pipeline":%q,`, a.pipeline)
	if a.snapshot > 0 {
		more += fmt.Sprintf(`"snapshotsequence":"%020d",`, a.snapshot)
	}
	text := strings.Replace(event(1, a.id(), subject, a.sequence, data), "/clusters/c/1", "/clusters/"+a.cluster, 1)
	return strings.Replace(text, `"pipeline":"p",`, more, 1)
}

// arrivals is what a cluster sends, in no order that means anything, and some of it several times.
func arrivals(cluster string, random *rand.Rand) (all []arrival) {
	one := func(of ...string) string { return of[random.IntN(len(of))] }
	for n := range 60 {
		a := arrival{cluster: cluster, pipeline: one("p", "p", "p", "q"), namespace: one("m", "n")}
		switch random.IntN(8) {
		case 0:
			a.namespace, a.snapshot, a.complete = one("", "m"), 1+random.IntN(12), random.IntN(4) > 0
		case 1:
			if n > 0 {
				a = all[random.IntN(n)]
				break
			}
			fallthrough
		default:
			a.uid, a.typ, a.sequence = one("u", "v"), one("ADDED", "MODIFIED", "DELETED"), 1+random.IntN(12)
			a.subject, a.version = fmt.Sprintf("/api/v1/namespaces/%s/configmaps/%d", a.namespace, random.IntN(6)), max(1, a.sequence-random.IntN(3))
			a.snapshot = max(0, random.IntN(20)-8)
		}
		all = append(all, a)
	}
	return all
}

// above reports whether a record is above another one of its object.
func (a *arrival) above(b *arrival) bool {
	switch deleted, other := a.typ == "DELETED", b.typ == "DELETED"; {
	case a.sequence != b.sequence:
		return a.sequence > b.sequence
	case deleted != other:
		return deleted
	default:
		return a.snapshot > b.snapshot
	}
}

// reference applies the rules of docs/consumers.md, and returns the table.
func reference(all []arrival) (table []string) {
	rows, marks := map[string]arrival{}, map[string]int{}
	for _, a := range all {
		if a.subject == "" {
			if key := a.pipeline + a.namespace; a.complete {
				marks[key] = max(marks[key], a.snapshot)
			}
			continue
		}
		key := a.pipeline + a.subject
		if before, known := rows[key]; !known || a.above(&before) {
			rows[key] = a
		}
	}
	for _, r := range rows {
		if mark := max(marks[r.pipeline], marks[r.pipeline+r.namespace]); r.typ != "DELETED" && max(r.sequence, r.snapshot) >= mark {
			table = append(table, fmt.Sprintln(r.cluster, r.pipeline, r.subject, r.sequence, r.snapshot))
		}
	}
	slices.Sort(table)
	return table
}

// TestStores has the examples read what 200 clusters send at random, from two partitions, and compares their tables with a reference, and
// their logs with what was sent. Then they read all of it once more.
func TestStores(t *testing.T) {
	broker := kafkatest.Start(t)
	broker.CreateTopic(topic, 2)
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.Addr()), kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close) // behind the parallel tests
	const clusters = 200
	sent := map[string][]arrival{}
	var records []*kgo.Record
	random := rand.New(rand.NewPCG(18, 18))
	for n := range clusters {
		name := fmt.Sprintf("c%03d", n)
		sent[name] = arrivals(name, rand.New(rand.NewPCG(18, uint64(n))))
		for _, a := range sent[name] {
			records = append(records, &kgo.Record{
				Value: []byte(a.event()), Partition: random.Int32N(2),
				Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte("application/cloudevents+json")}},
			})
		}
	}
	end := func(last string) (records []*kgo.Record) { // one in each partition: a consumer that has both has read what is before
		for partition := range int32(2) {
			a := arrival{cluster: "end", pipeline: "p", subject: "/api/v1/namespaces/m/configmaps/" + last + fmt.Sprint(partition), uid: "u", typ: "ADDED", namespace: "m", version: 1, sequence: 1}
			records = append(records, &kgo.Record{
				Value: []byte(a.event()), Partition: partition,
				Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte("application/cloudevents+json")}},
			})
		}
		return records
	}
	records = append(records, end("once")...)
	if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for _, language := range []string{"go", "python", "java"} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			first := newConsumer(t, language, "kafka", "brokers", broker.In(t).Addr(), "topic", topic, "group", language)
			again := newConsumer(t, language, "kafka", "brokers", broker.In(t).Addr(), "topic", topic, "group", language+"-again").over(first)
			for n, c := range []*consumer{first, again} {
				last := "once"
				if n > 0 {
					last = language
					if err := client.ProduceSync(t.Context(), end(last)...).FirstErr(); err != nil {
						t.Fatal(err)
					}
				}
				c.Start()
				eventually(t, c.name+" has read all", func() error {
					c.expectRunning()
					rows, err := c.rows(`SELECT subject FROM existing WHERE cluster = 'end' AND subject LIKE '%/` + last + `_'`)
					if err == nil && len(rows) != 2 {
						err = fmt.Errorf("it has %v", rows)
					}
					return err
				})
				c.process.Kill()
				tables, logs := map[string][]string{}, map[string]int{}
				rows, err := c.rows(`SELECT cluster, pipeline, subject, CAST(sequence AS INTEGER), CAST(snapshot_sequence AS INTEGER) FROM existing`)
				if err != nil {
					t.Fatal(err)
				}
				for _, row := range rows {
					tables[row[0].(string)] = append(tables[row[0].(string)], fmt.Sprintln(row...))
				}
				if rows, err = c.rows(`SELECT cluster, id FROM log`); err != nil {
					t.Fatal(err)
				}
				for _, row := range rows {
					logs[row[0].(string)]++
				}
				for cluster, all := range sent {
					table, ids := reference(all), map[string]bool{}
					for _, a := range all {
						if a.subject != "" {
							ids[a.pipeline+a.id()] = true
						}
					}
					slices.Sort(tables[cluster])
					if !slices.Equal(tables[cluster], table) || logs[cluster] != len(ids) {
						t.Fatalf("got %q and %d in the log, want %q and %d, of\n%+v", tables[cluster], logs[cluster], table, len(ids), all)
					}
				}
			}
		})
	}
}
