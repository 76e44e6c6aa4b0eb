package e2e_test

import (
	"fmt"
	"maps"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeferry/kubeferry/consume"
	"github.com/kubeferry/kubeferry/test/internal/proxy"
	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/load"
	"github.com/kubeferry/kubeferry/test/natstest"
	"github.com/kubeferry/kubeferry/test/oracle"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// tableKeeper receives webhooks and keeps a table, as docs/consumers.md has it. It takes so many records, and is not available then.
type tableKeeper struct {
	tb  testing.TB
	url string
	// read, of a topic or a stream, calls apply with all that it has.
	read func(apply func(header func(string) string, body []byte))

	mu    sync.Mutex // guards what follows
	room  int
	hangs bool // it does not answer once it has taken what it may
	late  int  // how many requests with an object whose name begins with `again` it refuses
	table *consume.Table
	got   []consume.Record
	gaps  []consume.Record
}

const unlimited = 1 << 30

func startTableKeeper(tb testing.TB) *tableKeeper {
	tb.Helper()
	hook := webhooktest.Start(tb)
	k := &tableKeeper{tb: tb, url: hook.URL(), room: unlimited, table: consume.NewTable()}
	hook.Use(k.receive)
	tb.Cleanup(func() {
		for _, record := range slices.Concat(hook.Accepted(), hook.Marks()) {
			if _, err := cloudEvents(nil, record.Body); err != nil {
				tb.Error(err)
			}
		}
	})
	return k
}

func (k *tableKeeper) receive(r *webhooktest.Request) webhooktest.Answer {
	k.mu.Lock()
	defer k.mu.Unlock()
	records, err := consume.Decode(r.Header.Get, r.Body)
	if err != nil {
		k.tb.Errorf("%s: %v", r.Body, err)
	}
	if k.room < len(records) && k.hangs {
		return webhooktest.Answer{Hang: true}
	}
	if k.room < len(records) {
		return webhooktest.Answer{Status: http.StatusServiceUnavailable}
	}
	again := func(r consume.Record) bool { return strings.HasPrefix(path.Base(r.Subject), "again") }
	if k.late > 0 && slices.ContainsFunc(records, again) {
		k.late--
		return webhooktest.Answer{Status: http.StatusInternalServerError}
	}
	k.room -= len(records)
	k.apply(records)
	return webhooktest.Answer{Status: http.StatusOK}
}

func (k *tableKeeper) apply(records []consume.Record) {
	for _, record := range records {
		again := k.read != nil && slices.ContainsFunc(k.got, func(r consume.Record) bool { return r.ID == record.ID })
		for _, before := range k.got {
			if record.IsChange() && before.Key() == record.Key() && before.Sequence > record.Sequence && !again { // what a killed leader has sent may come again
				k.tb.Errorf("out of order: %s %s", record.Type, record.ID)
			}
		}
		k.table.Apply(&record)
		if record.Type == consume.Gap {
			k.gaps = append(k.gaps, record)
		}
		k.got = append(k.got, record)
	}
}

// keepStreams makes a topic and a stream that take no large records, and returns keepers of them, and the pipelines k and j with their
// sinks.
func keepStreams(tb testing.TB) (keepers map[string]*tableKeeper, pipelines, sinks string) {
	tb.Helper()
	broker, bus := kafkatest.Start(tb), natstest.Start(tb, nil)
	broker.CreateTopicWith("kept", 1, map[string]string{"max.message.bytes": "65536"})
	bus.CreateStreamWith(tb.Context(), jetstream.StreamConfig{Name: "kept", Subjects: []string{"kept.>"}, MaxMsgSize: 65536})
	keepers = map[string]*tableKeeper{
		"k": {tb: tb, read: func(apply func(header func(string) string, body []byte)) {
			records, err := broker.ReadAll(tb.Context(), "kept")
			if err != nil {
				tb.Error(err)
			}
			for _, r := range records {
				apply(func(name string) string { return r.Headers[name] }, r.Value)
			}
		}},
		"j": {tb: tb, read: func(apply func(header func(string) string, body []byte)) {
			messages, err := bus.ReadAll(tb.Context(), "kept")
			if err != nil {
				tb.Error(err)
			}
			for _, m := range messages {
				apply(m.Header.Get, m.Data)
			}
		}},
	}
	sinks = fmt.Sprintf(`{name: k, kafka: {brokers: [%q], topic: kept}}, {name: j, nats: {urls: [%q], subject: "kept.{name}", stream: {name: kept}}}`,
		broker.Addr(), bus.URL())
	return keepers, "{name: k, sink: k}, {name: j, sink: j}", sinks
}

// lock locks the keeper. One of a topic or a stream reads that anew.
func (k *tableKeeper) lock() (unlock func()) {
	k.mu.Lock()
	if k.read != nil {
		k.table, k.got, k.gaps = consume.NewTable(), nil, nil
		k.read(func(header func(string) string, body []byte) {
			records, err := consume.Decode(header, body)
			if err != nil {
				k.tb.Errorf("%s: %v", body, err)
			}
			k.apply(records)
		})
	}
	return k.mu.Unlock
}

// Take lets it take n records from now on.
func (k *tableKeeper) Take(n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.room = n
}

// Late lets it take any number, but the objects whose names begin with `again` only after so many refusals.
func (k *tableKeeper) Late(refusals int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.room, k.late = unlimited, refusals
}

// Full waits until it has taken what it may.
func (k *tableKeeper) Full() {
	k.tb.Helper()
	eventually(k.tb, wide, "the snapshot is under way", func() error {
		k.mu.Lock()
		defer k.mu.Unlock()
		if k.room > 0 {
			return fmt.Errorf("%d records are left to take", k.room)
		}
		return nil
	})
}

// Gaps returns the gap records so far.
func (k *tableKeeper) Gaps() []consume.Record {
	defer k.lock()()
	return slices.Clone(k.gaps)
}

// Objects returns the names of the objects whose records it has taken, in their order.
func (k *tableKeeper) Objects() (names []string) {
	defer k.lock()()
	for _, r := range k.got {
		if r.IsChange() {
			names = append(names, path.Base(r.Subject))
		}
	}
	return names
}

// Snapshots waits for a number of marks, and compares the count of each with the records that name its snapshot.
func (k *tableKeeper) Snapshots(n int) {
	k.tb.Helper()
	eventually(k.tb, wide, fmt.Sprintf("%d snapshots", n), func() error {
		defer k.lock()()
		objects, marks := map[string]map[string]bool{}, map[string]bool{}
		for _, r := range k.got {
			switch {
			case r.Type == consume.Mark:
				if named := objects[r.SnapshotSequence]; !r.Complete || len(r.Except) > 0 || len(named) != int(r.Count) { //nolint:gosec // of few objects
					k.tb.Errorf("%d objects of the snapshot: got %+v", len(named), r)
				}
				marks[r.SnapshotSequence] = true
			case r.Snapshot:
				if objects[r.SnapshotSequence] == nil {
					objects[r.SnapshotSequence] = map[string]bool{}
				}
				objects[r.SnapshotSequence][r.ID] = true
			}
		}
		if len(marks) != n {
			return fmt.Errorf("got %v", marks)
		}
		return nil
	})
}

// Equals waits until the table has those of some objects that a pipeline selects, and no others.
func (k *tableKeeper) Equals(exist *objects, selected func(name string) bool) {
	k.tb.Helper()
	list, err := exist.client.List(k.tb.Context(), metav1.ListOptions{})
	if err != nil {
		k.tb.Fatal(err)
	}
	var want []string
	for _, item := range list.Items {
		if selected(item.GetName()) {
			want = append(want, fmt.Sprintf("%s %s %s", item.GetName(), item.GetUID(), item.GetResourceVersion()))
		}
	}
	slices.Sort(want)
	eventually(k.tb, wide, "the table equals what exists", func() error {
		defer k.lock()()
		var got []string
		for _, r := range k.table.All() {
			got = append(got, fmt.Sprintf("%s %s %s", path.Base(r.Subject), r.UID(), r.ResourceVersion()))
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("\n got %q\nwant %q", got, want)
		}
		return nil
	})
}

// requestSnapshot runs `kubeferry snapshot` and returns its end.
func requestSnapshot(t *testing.T, file, pipeline string) (wait func(code int, want string)) {
	type end struct {
		output string
		code   int
	}
	ended := make(chan end, 1)
	go func() {
		defer close(ended)
		output, code := runToEnd(t, "snapshot", "--config", file, "--pipeline", pipeline)
		ended <- end{output, code}
	}()
	return func(code int, want string) {
		t.Helper()
		if got := <-ended; got.code != code || !strings.Contains(got.output, want) {
			t.Errorf("exit code %d and\n%s\nwant %d and %q", got.code, got.output, code, want)
		}
	}
}

// interrupted requests snapshots for the pipelines k and j, which have begun and wait for their list until resume is called.
func interrupted(t *testing.T, gateway *proxy.HTTP, file string, keepers map[string]*tableKeeper) (resume func(), wait func(code int, want string)) {
	t.Helper()
	hold := make(chan struct{})
	var held atomic.Int32
	gateway.Use(func(r *http.Request) *proxy.Fault {
		query := r.URL.Query()
		if strings.HasSuffix(r.URL.Path, "/configmaps") && query.Has("limit") && query.Get("limit") != "1" && !query.Has("watch") {
			held.Add(1)
			return &proxy.Fault{Hold: hold}
		}
		return nil
	})
	var waits []func(code int, want string)
	for pipeline := range keepers {
		waits = append(waits, requestSnapshot(t, file, pipeline))
	}
	eventually(t, wide, "the snapshots begin", func() error {
		if n := int(held.Load()); n < len(keepers) {
			return fmt.Errorf("%d began", n)
		}
		return nil
	})
	resume = func() {
		gateway.Use(nil)
		close(hold)
	}
	return resume, func(code int, want string) {
		t.Helper()
		for _, wait := range waits {
			wait(code, want)
		}
	}
}

// large are objects that fill what a snapshot is read ahead: it stands before some of them while its receiver takes nothing.
type large struct {
	*objects
	names []string
}

func createLarge(t *testing.T, namespace string) large {
	t.Helper()
	l := large{objects: objectsIn(t, plane(t).Config(), configMaps, namespace)}
	for n := range 16 {
		l.names = append(l.names, fmt.Sprintf("%s-%02d", []string{"changed", "deleted", "again", "same"}[n%4], n))
	}
	for _, name := range l.names {
		l.Create(name, data(noise(32<<10)))
	}
	return l
}

// Change changes some, deletes some, makes some again under the same name, and makes one more.
func (l large) Change(another string) {
	l.tb.Helper()
	for _, name := range l.names {
		switch what, _, _ := strings.Cut(name, "-"); what {
		case "changed":
			l.Patch(name, map[string]any{"metadata": map[string]any{"annotations": map[string]any{"note": another}}})
		case "deleted":
			l.Delete(name)
		case "again":
			l.Delete(name)
			l.Create(name, data(another))
		}
	}
	l.Create(another, data(another))
}

// TestExtendedSnapshotMeetsChanges has objects changed, deleted and made again while a snapshot on demand waits for its receiver, or, for Kafka and
// JetStream, for the API server: it is complete, and no object's records are out of order. In the next one kubeferry stops, and starts
// with another filter: it begins anew with what that one selects, behind what waited when it stopped. With a record that dies the last
// one is not complete.
func TestExtendedSnapshotMeetsChanges(t *testing.T) {
	beside(t)
	namespace := newNamespace(t, "snapshot-meets")
	large := createLarge(t, namespace)
	keeper, other, dir := startTableKeeper(t), webhooktest.Start(t), t.TempDir()
	streams, pipelines, sinks := keepStreams(t)
	gateway, kubeconfig := gatewayOf(t, plane(t).Config())
	text := func(filter string) string {
		filters := fmt.Sprintf("filters: [{expr: '%s'}]", filter)
		return fmt.Sprintf(`
stateDir: %q
shutdown: {grace: 1s}
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: hook, backlog: {maxBytes: 1Mi}, %s}, {name: q, sink: other}, %s]
sinks: [{name: hook, webhook: {url: %q}}, {name: other, webhook: {url: %q}}, %s]
`, dir, namespace, filters, strings.ReplaceAll(pipelines, "}", ", "+filters+"}"), keeper.url, other.URL(), sinks)
	}
	config := text("true")
	file := writeConfig(t, t.TempDir(), config)
	all := func(string) bool { return true }
	keepers := append(slices.Collect(maps.Values(streams)), keeper)

	e := startExporter(t, kubeconfig, config)
	for _, k := range keepers {
		k.Snapshots(1)
	}
	keeper.Take(3)
	end := requestSnapshot(t, file, "p")
	keeper.Full()
	resume, ends := interrupted(t, gateway, file, streams)
	large.Change("new")
	wait(t, hookReader(t, other, cloudEvents), "new", oracle.Added)
	output, code := runToEnd(t, "snapshot", "--config", file, "--pipeline", "p")
	if code != 1 || !strings.Contains(output, "a snapshot is under way") || !strings.Contains(output, " left") {
		t.Errorf("a second one: exit code %d and\n%s", code, output)
	}
	resume()
	keeper.Take(unlimited)
	end(0, "complete")
	ends(0, "complete")
	for _, k := range keepers {
		k.Snapshots(2)
		k.Equals(large.objects, all)
	}

	keeper.Take(3)
	end = requestSnapshot(t, file, "p")
	keeper.Full()
	resume, ends = interrupted(t, gateway, file, streams)
	e.Stop()
	end(1, "begins anew")
	ends(1, "begins anew")
	resume()
	keeper.Late(5)
	startExporter(t, kubeconfig, text(`!object.metadata.name.startsWith("again")`))
	for _, k := range keepers {
		k.Snapshots(3) // the one that the edit interrupted has begun anew
		k.Equals(large.objects, func(name string) bool { return !strings.HasPrefix(name, "again") })
		if gaps := k.Gaps(); len(gaps) > 0 {
			t.Errorf("got gaps %+v", gaps)
		}
	}

	large.Create("huge", data(noise(128<<10)))
	for pipeline, k := range streams {
		output, code := runToEnd(t, "snapshot", "--config", file, "--pipeline", pipeline)
		if code != 1 || !strings.Contains(output, ", not complete") {
			t.Errorf("with a record that %s does not take: exit code %d and\n%s", pipeline, code, output)
		}
		eventually(t, wide, "the last mark", func() error {
			defer k.lock()()
			if last := k.got[len(k.got)-1]; last.Type != consume.Mark || !last.Complete || len(last.Except) != 1 {
				return fmt.Errorf("got %+v", last)
			}
			return nil
		})
	}
}

// TestExtendedSnapshotOutlivesItsLeader kills the leader in a snapshot on demand, and changes objects before and after: the next leader begins
// it anew, under another id, and it is complete.
func TestExtendedSnapshotOutlivesItsLeader(t *testing.T) {
	beside(t)
	namespace := newNamespace(t, "snapshot-leader")
	large := createLarge(t, namespace)
	keeper := startTableKeeper(t)
	streams, pipelines, sinks := keepStreams(t)
	keepers := append(slices.Collect(maps.Values(streams)), keeper)
	r := newReplicas(t, namespace, fmt.Sprintf(`
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: hook}, %s]
sinks: [{name: hook, webhook: {url: %q}}, %s]
`, namespace, pipelines, keeper.url, sinks))
	gateway, kubeconfig := gatewayOf(t, r.account)
	r.kubeconfig = kubeconfig
	r.Start()
	r.Leader()
	r.Start()
	leader, _ := r.WaitInSync()
	for _, k := range keepers {
		k.Snapshots(1)
	}

	file := writeConfig(t, t.TempDir(), fmt.Sprintf("stateDir: %q\n", leader.dir)+r.config)
	keeper.Take(3)
	end := requestSnapshot(t, file, "p")
	keeper.Full()
	resume, ends := interrupted(t, gateway, file, streams)
	large.Change("before")
	leader.WaitStandbys(1)
	leader.Kill()
	r.Remove(leader)
	end(1, "begins anew")
	ends(1, "begins anew")
	resume()
	for _, name := range []string{"same-03", "again-02"} {
		large.Delete(name)
	}
	large.Create("again-02", data("after"))
	keeper.Take(unlimited)
	r.Leader()
	for _, k := range keepers {
		k.Snapshots(2) // that of the killed leader has begun anew
		k.Equals(large.objects, func(string) bool { return true })
		if gaps := k.Gaps(); len(gaps) > 0 {
			t.Errorf("got gaps %+v", gaps)
		}
	}
}

// TestExtendedKilledInItsFirstSnapshot kills kubeferry before its first state is complete, when its receiver has taken some of it, and
// deletes what that has and has not. A gap record with an empty `from` stands before the next snapshot, which removes what is gone.
func TestExtendedKilledInItsFirstSnapshot(t *testing.T) {
	beside(t)
	namespace := newNamespace(t, "first-snapshot")
	large := createLarge(t, namespace)
	keeper, dir := startTableKeeper(t), t.TempDir()
	text := fmt.Sprintf(`
stateDir: %q
sources: [{name: s, resources: [v1/configmaps], namespaces: {include: [%s]}}]
pipelines: [{name: p, sink: hook, backlog: {maxBytes: 256Ki, overflow: block}}]
sinks: [{name: hook, webhook: {url: %q, batch: {maxRecords: 1}, timeout: 10m}}]
`, dir, namespace, keeper.url)
	keeper.hangs = true // what is refused would leave memory, and the rest of the state would be read
	keeper.Take(4)
	e := startExporter(t, plane(t).KubeconfigFile(), text)
	keeper.Full()
	e.Kill()
	taken := keeper.Objects()
	large.Delete(taken[len(taken)-1])
	if i := slices.IndexFunc(large.names, func(name string) bool { return !slices.Contains(taken, name) }); i >= 0 {
		large.Delete(large.names[i])
	}

	keeper.Take(unlimited)
	startExporter(t, plane(t).KubeconfigFile(), text)
	keeper.Snapshots(1)
	keeper.Equals(large.objects, func(string) bool { return true })
	if gaps := keeper.Gaps(); len(gaps) != 1 || gaps[0].From != "" || gaps[0].Reason == "" {
		t.Errorf("got gaps %+v", gaps)
	}
}

// TestExtendedSnapshotSlowerThanHistory adds a pipeline whose receiver takes its snapshot slower than the API server forgets, and stops
// kubeferry meanwhile: the watch goes on for the other one, the list goes on where it was refused, and what was taken is not sent again.
func TestExtendedSnapshotSlowerThanHistory(t *testing.T) {
	disturbing(t)
	config := plane(t).Config()
	namespace := newNamespace(t, "slow-snapshot")
	gateway, kubeconfig := gatewayOf(t, config)
	events := objectsIn(t, config, load.Events().GVR, namespace) // no watch cache has their history
	event := map[string]any{"involvedObject": map[string]any{"namespace": namespace}, "message": noise(1 << 10)}
	const count, page = 1100, 500
	for n := range count {
		events.Create(fmt.Sprintf("e-%04d", n), event)
	}
	quick, slow, dir := webhooktest.Start(t), startTableKeeper(t), t.TempDir()
	text := func(pipelines string) string {
		return fmt.Sprintf(`
stateDir: %q
shutdown: {grace: 1s}
sources: [{name: s, resources: [v1/events], namespaces: {include: [%s]}}]
pipelines: [%s]
sinks: [{name: quick, webhook: {url: %q}}, {name: slow, webhook: {url: %q}}]
`, dir, namespace, pipelines, quick.URL(), slow.url)
	}
	e := startExporter(t, kubeconfig, text("{name: quick, sink: quick}"))
	e.WaitReady()
	e.WaitSettled(wide)
	e.Stop()

	const both = "{name: quick, sink: quick}, {name: slow, sink: slow}"
	read := hookReader(t, quick, cloudEvents)
	before := len(gateway.Requests())
	compacted := make(chan struct{})
	compact := sync.OnceFunc(func() { close(compacted) })
	defer compact()
	gateway.Use(func(r *http.Request) *proxy.Fault { // while the sink refuses all, the list is read further ahead
		if strings.HasSuffix(r.URL.Path, "/events") && r.URL.Query().Get("continue") != "" {
			return &proxy.Fault{Hold: compacted}
		}
		return nil
	})
	slow.Take(10)
	committed := watchCommits(t, dir)
	e = startExporter(t, kubeconfig, text(both))
	slow.Full() // in the first page
	for n := range 3 {
		events.Create(fmt.Sprint("live-", n), event)
		if _, err := plane(t).CompactEtcd(within(t, wide)); err != nil {
			t.Fatal(err)
		}
	}
	compact()
	wait(t, read, "live-2", oracle.Added)
	slow.Take(page + 200)
	slow.Full() // in the second
	var lists, watches, refusals int
	for _, r := range gateway.Requests()[before:] {
		switch {
		case isWatch(r.Path, r.Query, "events"):
			watches++
		case !strings.HasSuffix(r.Path, "/events") || r.Query.Get("limit") == "1":
		case r.Query.Get("continue") == "":
			lists++
		case r.Status == http.StatusGone:
			refusals++
		}
	}
	if lists != 1 || watches != 1 || refusals != 1 {
		t.Errorf("got %d lists from the beginning, %d watches, and %d refused pages", lists, watches, refusals)
	}

	for _, name := range []string{"live-3", "live-4"} { // the first commit may have begun before
		events.Create(name, event)
		committed.Wait(1)
	}
	e.Stop()
	taken := slow.Objects()
	events.Create("live-5", event) // while it is away
	slow.Take(unlimited)
	startExporter(t, kubeconfig, text(both))
	wait(t, read, "live-5", oracle.Added)
	slow.Snapshots(1)
	slow.Equals(events, func(string) bool { return true })
	for _, name := range slow.Objects()[len(taken):] {
		if slices.Contains(taken, name) {
			t.Errorf("%s was taken, and came again", name)
		}
	}
	if gaps := slow.Gaps(); len(gaps) > 0 {
		t.Errorf("got gaps %+v", gaps)
	}
}
