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

// arrival is a change, or a mark of a snapshot, at a place in the partitions.
type arrival struct {
	cluster, subject, uid, typ, name, namespace string
	version, sequence, partition, offset        int
	derived, complete, replayed                 bool
}

func (a *arrival) id() string {
	if a.typ == "started" || a.typ == "completed" {
		return fmt.Sprintf("%s/w/%s-%s/SNAPSHOT", a.cluster, a.name, a.typ)
	}
	return fmt.Sprintf("%s/%s/%d/%s", a.cluster, a.uid, a.version, a.typ)
}

func (a *arrival) event() string {
	data := fmt.Sprintf(`"type":%q,"object":{},"inferred":%t`, a.typ, a.derived)
	if a.subject == "" {
		data = fmt.Sprintf(`"type":"SNAPSHOT","phase":%q,"snapshot":%q,"namespace":%q,"complete":%t`, a.typ, a.name, a.namespace, a.complete)
	}
	subject := "/api/v1/configmaps"
	if a.subject != "" {
		subject = a.subject
	}
	text := strings.Replace(event(1, a.id(), subject, a.sequence, data), "/clusters/c/1", "/clusters/"+a.cluster, 1)
	if a.replayed {
		text = late(text)
	}
	return text
}

// arrivals is what a cluster sends, in no order that means anything: repetitions, records that come late, deletions of what was never there.
func arrivals(cluster string, random *rand.Rand) (all []arrival) {
	one := func(of ...string) string { return of[random.IntN(len(of))] }
	for n := range 60 {
		a := arrival{cluster: cluster, namespace: one("m", "n"), sequence: 1 + random.IntN(12), derived: random.IntN(2) == 0}
		switch random.IntN(6) {
		case 0: // each partition has it
			a = arrival{cluster: cluster, typ: one("started", "completed"), name: one("s", "t", "u"), namespace: one("", "m"), complete: random.IntN(4) > 0, replayed: random.IntN(4) == 0}
			all = append(all, a)
			a.partition = 1
		case 1, 2: // under its id once more
			if again := random.IntN(n + 1); again < len(all) && all[again].subject != "" {
				a = all[again]
				a.sequence, a.derived = a.sequence+random.IntN(12), random.IntN(2) == 0
				break
			}
			fallthrough
		default:
			number := random.IntN(6)
			a.partition, a.uid, a.typ = number%2, one("u", "v")+fmt.Sprint(a.namespace, number), one("ADDED", "MODIFIED", "DELETED")
			a.subject, a.version = fmt.Sprintf("/api/v1/namespaces/%s/configmaps/%d", a.namespace, number), max(1, a.sequence-random.IntN(3))
		}
		all = append(all, a)
	}
	return all
}

// row is the row of an object, as of the record before.
type row struct{ latest, seen arrival }

func (a *arrival) deleted() bool { return a.typ == "DELETED" }

// after reports whether a change is later than another one of its object.
func (a *arrival) after(b *arrival) bool {
	return a.sequence > b.sequence || a.sequence == b.sequence && a.deleted() && !b.deleted()
}

// reference applies the rules of docs/consumers.md, and returns the table and the log, in the order of subjects.
func reference(all []arrival) (table, log []string) {
	rows, logged := map[string]row{}, map[string]bool{}
	begun, marks := map[string]arrival{}, map[string]bool{}
	for _, a := range all {
		scope, mark := fmt.Sprint(a.cluster, a.partition, a.namespace), fmt.Sprint(a.partition, a.id())
		switch key := a.cluster + a.subject; {
		case a.subject != "":
			r, known := rows[key]
			state := a.uid == r.latest.uid && a.version == r.latest.version
			same := a.deleted() == r.latest.deleted() && (a.deleted() || state)
			back := a.derived && known && a.deleted() != r.latest.deleted() && (state || a.deleted() && a.uid == r.latest.uid)
			once := fmt.Sprint(a.id(), a.sequence)
			if (!logged[a.id()] || back && !logged[once]) && !(a.derived && known && (same || r.latest.after(&a))) {
				logged[a.id()], logged[once] = true, true
				log = append(log, fmt.Sprintln(a.cluster, a.subject, a.id()))
			}
			if r.seen = a; !known || a.after(&r.latest) {
				r.latest = a
			}
			rows[key] = r
		case marks[mark]:
		case a.typ == "started" && a.replayed:
		case a.typ == "started":
			begun[scope] = a
		case a.complete && begun[scope].name == a.name:
			for key, r := range rows {
				if r.seen.cluster == a.cluster && r.seen.partition == a.partition && (a.namespace == "" || r.seen.namespace == a.namespace) &&
					!r.latest.deleted() && r.seen.offset < begun[scope].offset {
					delete(rows, key)
				}
			}
		}
		marks[mark] = true
	}
	for _, r := range rows {
		if !r.latest.deleted() {
			table = append(table, fmt.Sprintln(r.latest.cluster, r.latest.subject, r.latest.uid, r.latest.version))
		}
	}
	slices.Sort(table)
	slices.SortStableFunc(log, func(a, b string) int { return strings.Compare(strings.Fields(a)[1], strings.Fields(b)[1]) })
	return table, log
}

// TestStores has the examples read what 200 clusters send at random, and compares their tables and logs with a reference.
func TestStores(t *testing.T) {
	broker := kafkatest.Start(t)
	broker.CreateTopic(topic, 2)
	client, err := kgo.NewClient(kgo.SeedBrokers(broker.Addr()), kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	const clusters = 200
	sent := map[string][]arrival{}
	var records []*kgo.Record
	var next [2]int
	for n := range clusters {
		name := fmt.Sprintf("c%03d", n)
		sent[name] = arrivals(name, rand.New(rand.NewPCG(18, uint64(n))))
		for i := range sent[name] {
			a := &sent[name][i]
			a.offset = next[a.partition]
			next[a.partition]++
			records = append(records, &kgo.Record{
				Value: []byte(a.event()), Partition: int32(a.partition),
				Headers: []kgo.RecordHeader{{Key: "content-type", Value: []byte("application/cloudevents+json")}},
			})
		}
	}
	if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	for _, language := range []string{"go", "python", "java"} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			c := newConsumer(t, language, "kafka", "brokers", broker.In(t).Addr(), "topic", topic, "group", language)
			c.Start()
			eventually(t, c.name+" has read all", func() error {
				c.expectRunning()
				rows, err := c.rows(`SELECT position FROM positions ORDER BY stream`)
				if want := fmt.Sprintf("[[%d] [%d]]", next[0]-1, next[1]-1); err == nil && fmt.Sprint(rows) != want {
					err = fmt.Errorf("it is at %v, want %v", rows, want)
				}
				return err
			})
			c.process.Kill()
			texts := func(query string) map[string][]string { // by cluster
				rows, err := c.rows(query)
				if err != nil {
					t.Fatal(err)
				}
				all := map[string][]string{}
				for _, row := range rows {
					all[row[0].(string)] = append(all[row[0].(string)], fmt.Sprintln(row...))
				}
				return all
			}
			tables := texts(`SELECT cluster, subject, uid, version FROM objects WHERE NOT deleted ORDER BY 1, 2`)
			logs := texts(`SELECT cluster, subject, id FROM log ORDER BY subject, n`)
			for cluster, all := range sent {
				table, log := reference(all)
				if !slices.Equal(tables[cluster], table) || !slices.Equal(logs[cluster], log) {
					t.Fatalf("got %q and %q, want %q and %q, of\n%+v", tables[cluster], logs[cluster], table, log, all)
				}
			}
		})
	}
}
