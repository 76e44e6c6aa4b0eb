package examples_test

import (
	"encoding/json"
	"fmt"
	"math/big"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/natstest"
)

// event is one in structured form, seen at a second of a day. data has no resource: that is the one of ConfigMaps.
func event(second int, id, subject string, sequence int, data string) string {
	order := ""
	if sequence > 0 {
		order = fmt.Sprintf(`"sequence":"%020d",`, sequence)
	}
	if !strings.Contains(data, "LATER") {
		data = `"resource":{"group":"","version":"v1","resource":"configmaps"},` + data
	}
	return fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/clusters/c/1","type":"dev.kubeferry.x","subject":%q,
"time":"2026-11-21T00:12:%02d.5Z","datacontenttype":"application/json","pipeline":"p",%s"data":{%s}}`, id, subject, second, order, data)
}

// changed is the event of a change of a ConfigMap whose object has nothing left, as transforms may have it.
func changed(second int, typ, name string, version, sequence int, more string) string {
	id := fmt.Sprintf("c/1/%s/%d/%s", name, version, typ)
	return event(second, id, "/api/v1/namespaces/shop/configmaps/"+name, sequence, fmt.Sprintf(`"type":%q,"object":{}%s`, typ, more))
}

// unreadable is an event with data that no version of kubeferry sends.
func unreadable(member string) string {
	name, _, _ := strings.Cut(member, ":")
	return regexp.MustCompile(name+`:({[^}]*}|"ADDED")`).ReplaceAllLiteralString(changed(11, "ADDED", "unreadable", 30, 30, ""), member)
}

// late is an event as kubeferry replay sends it.
func late(event string) string {
	return strings.Replace(event, `"data":`, `"replayed":true,"data":`, 1)
}

// named is an event that names a snapshot.
func named(event string, snapshot int) string {
	return strings.Replace(event, `"data":`, fmt.Sprintf(`"snapshotsequence":"%020d","data":`, snapshot), 1)
}

// marked is the mark of a snapshot.
func marked(second, snapshot int) string {
	return named(event(second, fmt.Sprintf("c/1/w/%d/SNAPSHOT", snapshot), "/api/v1/namespaces/shop/configmaps", 0,
		`"type":"SNAPSHOT","phase":"completed","namespace":"shop","count":1,"complete":true`), snapshot)
}

const (
	snapshot = `,"snapshot":true`
	inferred = `,"inferred":true`
)

// hostile is an object that languages read in different ways.
var hostile = `{"numbers":[9007199254740993,-9223372036854775808,1.8446744073709552e19,1e-7,0.1,-0],"text":"\u2028 \u0000 ß","deep":` +
	strings.Repeat("[", 9_990) + strings.Repeat("]", 9_990) + "}"

// exact decodes JSON with numbers as they are.
func exact(text string) (any, error) {
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	var value any
	err := decoder.Decode(&value)
	var rational func(any) any
	rational = func(value any) any {
		switch v := value.(type) {
		case json.Number:
			number, _ := new(big.Rat).SetString(v.String())
			return number.String()
		case []any:
			for i := range v {
				v[i] = rational(v[i])
			}
		case map[string]any:
			for name := range v {
				v[name] = rational(v[name])
			}
		}
		return value
	}
	return rational(value), err
}

// history is what a partition holds; see [wantTable] and [wantLog].
func history() []string {
	return []string{
		changed(1, "ADDED", "swept", 1, 1, ""), // of which the snapshot shows that it is gone
		marked(3, 3),
		changed(4, "ADDED", "deleted", 4, 4, ""),
		changed(5, "DELETED", "deleted", 12, 12, ""),
		changed(6, "ADDED", "deleted", 4, 4, ""),              // which comes once more
		changed(6, "DELETED", "deleted", 4, 20, inferred),     // the same deletion, after a kill and a gap
		named(changed(7, "ADDED", "kept", 2, 2, snapshot), 3), // late, and behind the mark
		event(11, "c/1/x/1/LATER", "x", 0, `"type":"LATER","namespace":["n"]`),
		`{"what":"is no record"}`,
		unreadable(`"resource":"configmaps"`), // an event, and no record: it must not stop a program
		unreadable(`"type":["ADDED"]`),
		strings.Replace(changed(11, "ADDED", "unreadable", 30, 30, ""), "c/1/unreadable/30/", "", 1),
		strings.Replace(changed(11, "ADDED", "hostile", 33, 33, ""), `"object":{}`, `"object":`+hostile, 1),
		changed(12, "ADDED", "again", 40, 40, ""),
		changed(13, "DELETED", "again", 40, 41, inferred), // its API is switched off, on, off and on
		changed(14, "ADDED", "again", 40, 42, snapshot),
		late(changed(15, "MODIFIED", "deleted", 8, 8, "")), // a dead letter: a log takes it, a table does not
		changed(16, "ADDED", "unseen", 43, 43, ""),
		named(changed(16, "MODIFIED", "again", 42, 45, ""), 50), // while a snapshot runs
		named(strings.Replace(changed(16, "ADDED", "hostile", 33, 33, snapshot), `"object":{}`, `"object":`+hostile, 1), 50),
		named(changed(16, "ADDED", "kept", 2, 2, snapshot), 50),
		marked(17, 50),
		marked(17, 3), // sent once more
		changed(18, "ADDED", "last", 51, 51, ""),
	}
}

var (
	wantTable = []string{"again again 42 shop", "hostile hostile 33 shop", "kept kept 2 shop", "last last 51 shop"}
	wantLog   = []string{
		"swept/1/ADDED", "deleted/4/ADDED", "deleted/12/DELETED", "deleted/4/DELETED", "kept/2/ADDED", "hostile/33/ADDED", "again/40/ADDED",
		"again/40/DELETED", "deleted/8/MODIFIED", "unseen/43/ADDED", "again/42/MODIFIED", "last/51/ADDED",
	}
)

// expectStored waits for the last object, and compares table and log.
func (c *consumer) expectStored(table, log []string, last string) {
	c.t.Helper()
	texts := func(query string) (all []string, err error) {
		rows, err := c.rows(query)
		for _, row := range rows {
			all = append(all, strings.TrimPrefix(strings.TrimSuffix(fmt.Sprintln(row...), "\n"), "c/1/"))
		}
		return all, err
	}
	var got []string
	eventually(c.t, c.name+" has the last object", func() (err error) {
		c.expectRunning()
		got, err = texts(`SELECT replace(subject, '/api/v1/namespaces/shop/configmaps/', ''), uid, version, namespace FROM existing ORDER BY 1`)
		if err == nil && !slices.ContainsFunc(got, func(row string) bool { return strings.HasPrefix(row, last+" ") }) {
			err = fmt.Errorf("it has %q", got)
		}
		return err
	})
	if !slices.Equal(got, table) {
		c.t.Errorf("%s: got %q, want %q", c.name, got, table)
	}
	stored, err := c.rows(`SELECT object FROM existing WHERE uid = 'hostile'`)
	if err != nil || len(stored) != 1 {
		c.t.Fatalf("%s: %d hostile objects, %v", c.name, len(stored), err)
	}
	is, err := exact(stored[0][0].(string))
	if want, _ := exact(hostile); err != nil || !reflect.DeepEqual(is, want) {
		c.t.Errorf("%s: %v; the hostile object is another one: %.200s", c.name, err, stored[0][0])
	}
	got, err = texts(`SELECT id FROM log ORDER BY n`)
	if err != nil || !slices.Equal(got, log) {
		c.t.Errorf("%s: the log is %q, %v, want %q", c.name, got, err, log)
	}
	got, err = texts(`SELECT id, baseline, inferred FROM log WHERE baseline OR inferred ORDER BY n`)
	if want := []string{"deleted/4/DELETED 0 1", "kept/2/ADDED 1 0", "again/40/DELETED 0 1"}; err != nil || !slices.Equal(got, want) {
		c.t.Errorf("%s: the log has %q as baselines or inferred, %v, want %q", c.name, got, err, want)
	}
	// What the page removes was hidden already.
	if _, err = c.rows(sqlBlock(c.t, "DELETE FROM objects AS o")); err != nil {
		c.t.Fatal(err)
	}
	got, err = texts(`SELECT uid FROM objects ORDER BY 1`)
	if want := present(table); err != nil || !slices.Equal(got, want) {
		c.t.Errorf("%s: after the cleaning the table has %q, %v, want %q", c.name, got, err, want)
	}
}

// present has the names of the objects in a table.
func present(table []string) (names []string) {
	for _, row := range table {
		name, _, _ := strings.Cut(row, " ")
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// expectEnd waits until the program ends by itself, with a text in its log. Every ten seconds it calls meanwhile.
func (c *consumer) expectEnd(reason string, meanwhile ...func()) {
	c.t.Helper()
	called := time.Now()
	eventually(c.t, c.name+" ends by itself", func() error {
		if time.Since(called) > 10*time.Second {
			for _, change := range meanwhile {
				change()
			}
			called = time.Now()
		}
		select {
		case <-c.process.Done():
			return nil
		default:
			return fmt.Errorf("it has not: %s", c.process.LogTail())
		}
	})
	if log := c.process.LogTail(); !strings.Contains(log, reason) {
		c.t.Errorf("%s: its log has not %q: %s", c.name, reason, log)
	}
}

// over is the program over the same database.
func (c *consumer) over(before *consumer) *consumer {
	c.db = before.db
	c.options.Args[len(c.options.Args)-1] = before.db
	return c
}

// TestReadAgain reads a partition twice, as after offsets that expired or were reset: nothing comes back, and the log has each change once.
func TestReadAgain(t *testing.T) {
	broker := kafkatest.Start(t)
	produce := func(topic string, events ...string) {
		client, err := kgo.NewClient(kgo.SeedBrokers(broker.Addr()), kgo.DefaultProduceTopic(topic))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		for _, e := range events {
			headers := []kgo.RecordHeader{{Key: "content-type", Value: []byte("application/cloudevents+json")}}
			if err := client.ProduceSync(t.Context(), &kgo.Record{Value: []byte(e), Headers: headers}).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, language := range []string{"go", "python", "java"} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			mine := "read-" + language
			broker := broker.In(t)
			read := func(group string) *consumer {
				return newConsumer(t, language, "kafka", "brokers", broker.Addr(), "topic", mine, "group", language+group)
			}
			broker.CreateTopic(mine, 1)
			produce(mine, history()...)
			first := read("1")
			first.Start()
			first.expectStored(wantTable, wantLog, "last")
			first.process.Kill()

			produce(mine, changed(19, "ADDED", "then", 52, 52, ""))
			again := read("2").over(first)
			again.Start()
			again.expectStored(append(slices.Clone(wantTable), "then then 52 shop"), append(slices.Clone(wantLog), "then/52/ADDED"), "then")
		})
	}
}

// TestRedelivered has a program killed that has read the first messages of a durable consumer of JetStream, and acknowledged none: they come
// again, behind all others. It is killed once more, and goes on.
func TestRedelivered(t *testing.T) {
	bus := natstest.StartCluster(t, 1)
	conn, err := nats.Connect(bus.URLs()[0], nats.Timeout(30*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close) // behind the parallel tests
	js, err := jetstream.New(conn)
	if err != nil {
		t.Fatal(err)
	}
	for _, language := range []string{"go", "python"} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			c := newConsumer(t, language, "jetstream", "url", bus.URLs()[0], "stream", language)
			c.Start()
			eventually(t, c.name+" says that there is no stream", func() error {
				c.expectRunning()
				if log := c.process.LogTail(); !strings.Contains(log, "stream not found") {
					return fmt.Errorf("its log is %s", log)
				}
				return nil
			})
			c.process.Kill()
			if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: language, Subjects: []string{language}}); err != nil {
				t.Fatal(err)
			}
			publish := func(events ...string) {
				for _, e := range events {
					m := &nats.Msg{Subject: language, Data: []byte(e), Header: nats.Header{"Content-Type": {"application/cloudevents+json"}}}
					if _, err := js.PublishMsg(t.Context(), m); err != nil {
						t.Fatal(err)
					}
				}
			}
			publish(history()...)
			take(t, bus.URLs()[0], language, "table", 2)
			c.Start()
			expectRedelivered(t, bus.URLs()[0], language, "table", 2)
			log := append(slices.Clone(wantLog[1:]), wantLog[0])
			c.expectStored(wantTable, log, "last")
			c.process.Kill()
			publish(changed(19, "ADDED", "then", 52, 52, ""))
			c.Start()
			c.expectStored(append(slices.Clone(wantTable), "then then 52 shop"), append(log, "then/52/ADDED"), "then")
			c.process.Kill()
		})
	}
}
