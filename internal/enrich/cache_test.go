package enrich

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/kubeferry/kubeferry/internal/delta"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("k8s.io/klog/v2.(*flushDaemon).run.func1"))
}

// server plays the API server with faults that a real one shows but not on demand. It serves things, in pages of two.
// The end-to-end tests run against a real one.
type server struct {
	metadata.Getter // nil: nothing but List and Watch is called

	mu       sync.Mutex
	version  int
	objects  []*metav1.PartialObjectMetadata
	watches  []*watch.RaceFreeFakeWatcher
	unknown  bool  // discovery does not list the kind
	listErr  error // of every list
	watchErr error // of every watch
	hangs    bool  // lists get no answer
	resolved []string
	lists    int
	hung     int
}

func (s *server) ResourceOf(_ context.Context, kind schema.GroupKind) (schema.GroupVersionResource, bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resolved = append(s.resolved, kind.Kind)
	if s.unknown || !strings.HasPrefix(kind.Kind, "Thing") && kind.Kind != "Node" && kind.Kind != "Secret" {
		return schema.GroupVersionResource{}, false, errors.New("no such kind")
	}
	return schema.GroupVersionResource{Version: "v1", Resource: strings.ToLower(kind.Kind) + "s"}, kind.Kind != "Node", nil
}

func (s *server) Resource(schema.GroupVersionResource) metadata.Getter { return s }

func (s *server) List(ctx context.Context, options metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lists++
	if s.hangs {
		s.hung++
		s.mu.Unlock()
		<-ctx.Done()
		s.mu.Lock()
		return nil, ctx.Err()
	}
	if s.listErr != nil {
		return nil, s.listErr
	}
	list := &metav1.PartialObjectMetadataList{}
	list.ResourceVersion = fmt.Sprint(s.version)
	from := 0
	if options.Continue != "" {
		_, _ = fmt.Sscan(options.Continue, &from)
	}
	for i := from; i < len(s.objects); i++ {
		if i == from+2 {
			list.Continue = fmt.Sprint(i)
			break
		}
		list.Items = append(list.Items, *s.objects[i].DeepCopy())
	}
	return list, nil
}

func (s *server) Watch(context.Context, metav1.ListOptions) (watch.Interface, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watchErr != nil {
		return nil, s.watchErr
	}
	w := watch.NewRaceFreeFake()
	s.watches = append(s.watches, w)
	return w, nil
}

// do changes the server.
func (s *server) do(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// send sends an event on the watch that was opened last.
func (s *server) send(t *testing.T, typ watch.EventType, object *metav1.PartialObjectMetadata) {
	t.Helper()
	eventually(t, "a watch", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.watches) > 0
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	object = object.DeepCopy()
	object.ResourceVersion = fmt.Sprint(s.version)
	s.watches[len(s.watches)-1].Action(typ, object)
}

// cut ends the open watch with a 410, after which the Reflector lists again.
func (s *server) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	expired := apierrors.NewResourceExpired("too old").Status()
	s.watches[len(s.watches)-1].Error(&expired)
}

func object(name, uid, app string) *metav1.PartialObjectMetadata {
	o := &metav1.PartialObjectMetadata{}
	o.Namespace, o.Name, o.UID, o.ResourceVersion = "shop", name, types.UID(uid), "1"
	o.Labels = map[string]string{"app": app}
	return o
}

func thing(name, uid string) delta.Reference {
	return delta.Reference{APIVersion: "v1", Kind: "Thing", Namespace: "shop", Name: name, UID: types.UID(uid)}
}

// logs counts lines by level and message.
type logs struct {
	slog.Handler
	mu    *sync.Mutex
	lines map[string]int
}

func newLogs() logs { return logs{slog.DiscardHandler, new(sync.Mutex), map[string]int{}} }

func (logs) Enabled(context.Context, slog.Level) bool { return true }
func (l logs) WithAttrs([]slog.Attr) slog.Handler     { return l }

func (l logs) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines[r.Level.String()+" "+r.Message]++
	return nil
}

func (l logs) count(line string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lines[line]
}

const (
	cannotBeRead = " the objects of a kind that Events are about cannot be read"
	areKnown     = "INFO the objects of a kind that Events are about are known"
)

// run runs a cache of the server until the test ends.
func run(t *testing.T, s *server, adjust func(*Cache)) (*Cache, logs) {
	t.Helper()
	before := goleak.IgnoreCurrent()
	told := newLogs()
	s.version = 1
	c := New(s, s, 1<<20, prometheus.NewRegistry(), slog.New(told))
	c.backoff = wait.Backoff{Duration: time.Millisecond, Factor: 1, Steps: 1 << 20}
	if adjust != nil {
		adjust(c)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	t.Cleanup(func() {
		cancel()
		running.Wait()
		goleak.VerifyNone(t, before)
	})
	return c, told
}

func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); !condition(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("did not happen: %s", what)
		}
	}
}

// eventNamespace is where the Events about an object lie.
func eventNamespace(ref delta.Reference) string {
	if ref.Kind == "Node" {
		return metav1.NamespaceDefault
	}
	return ref.Namespace
}

func (c *Cache) knows(ref delta.Reference, metadata string) bool {
	got, ok := c.Lookup(eventNamespace(ref), ref)
	return ok && string(got) == metadata
}

func (c *Cache) bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.store.bytes
}

func (c *Cache) misses(ref delta.Reference) bool {
	_, ok := c.Lookup(eventNamespace(ref), ref)
	return !ok
}

func TestCache(t *testing.T) {
	s := &server{objects: []*metav1.PartialObjectMetadata{object("a", "a1", "one"), object("b", "b1", "two"), object("c", "c1", "three")}}
	annotated := s.objects[2]
	annotated.Annotations = map[string]string{delta.LastApplied: "planted", "note": "kept"}
	annotated.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Owner", Name: "o", UID: "u"}}
	annotated.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "planted"}}
	c, told := run(t, s, nil)

	if !c.misses(thing("a", "a1")) {
		t.Error("the first question about a kind was answered")
	}
	eventually(t, "the list is read, both pages", func() bool { return c.knows(thing("a", "a1"), `{"labels":{"app":"one"}}`) })
	eventually(t, "the second page", func() bool {
		return c.knows(thing("c", "c1"), `{"labels":{"app":"three"},"annotations":{"note":"kept"},"ownerReferences":[{"apiVersion":"v1","kind":"Owner","name":"o","uid":"u"}]}`)
	})
	for _, unknown := range []delta.Reference{
		thing("a", "other"), thing("nobody", "a1"),
		thing("a", ""), thing("a", "a"),
		{APIVersion: "v1", Kind: "Thing", Namespace: "elsewhere", Name: "a", UID: "a1"},
		{APIVersion: "v1", Kind: "Thing", Namespace: "shop", UID: "a1"},
		{},
	} {
		if !c.misses(unknown) {
			t.Errorf("%+v is known", unknown)
		}
	}

	s.send(t, watch.Modified, object("a", "a1", "changed"))
	eventually(t, "a change", func() bool { return c.knows(thing("a", "a1"), `{"labels":{"app":"changed"}}`) })
	s.send(t, watch.Deleted, object("a", "a1", "last"))
	s.send(t, watch.Added, object("d", "d1", "four"))
	eventually(t, "another object", func() bool { return c.knows(thing("d", "d1"), `{"labels":{"app":"four"}}`) })
	if !c.knows(thing("a", "a1"), `{"labels":{"app":"changed"}}`) {
		t.Error("a deleted object is forgotten at once")
	}
	s.send(t, watch.Added, object("a", "a2", "successor"))
	eventually(t, "the successor", func() bool { return c.knows(thing("a", "a2"), `{"labels":{"app":"successor"}}`) })
	if !c.misses(thing("a", "a1")) {
		t.Error("the successor's metadata is taken for its predecessor's")
	}
	if n := told.count(areKnown); n != 1 || told.count("WARN"+cannotBeRead) > 0 {
		t.Errorf("%v", told.lines)
	}
}

// TestGap: what a list after a 410 does not hold is gone, and what changed meanwhile is known as it is now.
func TestGap(t *testing.T) {
	s := &server{objects: []*metav1.PartialObjectMetadata{object("a", "a1", "one"), object("b", "b1", "two")}}
	c, _ := run(t, s, func(c *Cache) { c.store.deletedFor = time.Nanosecond })
	c.misses(thing("a", "a1"))
	eventually(t, "the list", func() bool { return !c.misses(thing("b", "b1")) })
	eventually(t, "the watch", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return len(s.watches) == 1 })
	s.do(func() {
		s.objects = []*metav1.PartialObjectMetadata{object("b", "b1", "new"), object("c", "c1", "three")}
	})
	s.cut()
	eventually(t, "the second list", func() bool {
		return c.knows(thing("b", "b1"), `{"labels":{"app":"new"}}`) && !c.misses(thing("c", "c1"))
	})
	eventually(t, "a is forgotten, which takes one more change", func() bool {
		s.send(t, watch.Modified, object("b", "b1", "newer"))
		return c.misses(thing("a", "a1"))
	})
}

// TestUnreadable: each reason is logged once while it lasts, and what can be read later is read.
func TestUnreadable(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "", errors.New("no"))
	for name, c := range map[string]struct{ breaks, mend func(s *server) }{
		"unknown kind":      {func(s *server) { s.unknown = true }, func(s *server) { s.unknown = false }},
		"no right":          {func(s *server) { s.listErr = forbidden }, func(s *server) { s.listErr = nil }},
		"gone meanwhile":    {func(s *server) { s.listErr = apierrors.NewNotFound(schema.GroupResource{}, "") }, func(s *server) { s.listErr = nil }},
		"no right to watch": {func(s *server) { s.watchErr = forbidden }, func(s *server) { s.watchErr = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			s := &server{objects: []*metav1.PartialObjectMetadata{object("a", "a1", "one")}}
			c.breaks(s)
			cache, told := run(t, s, nil)
			cache.misses(thing("a", "a1"))
			eventually(t, "some attempts", func() bool { return told.count("DEBUG"+cannotBeRead) >= 3 })
			if n := told.count("WARN" + cannotBeRead); n != 1 {
				t.Errorf("%d warnings, want one", n)
			}
			s.do(func() { c.mend(s) })
			eventually(t, "it is read", func() bool { return !cache.misses(thing("a", "a1")) && told.count(areKnown) == 1 })
		})
	}
}

// TestLookupNeverWaits looks up while lists hang and before Run.
func TestLookupNeverWaits(t *testing.T) {
	s := &server{hangs: true}
	c, _ := run(t, s, nil)
	c.misses(thing("a", "a1"))
	eventually(t, "a list that hangs", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.hung > 0 })
	for range 1000 { // would never end
		c.misses(thing("a", "a1"))
	}
	idle := New(s, s, 1<<20, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	for namespace := range 20 {
		for n := range 50 {
			ref := delta.Reference{APIVersion: "v1", Kind: fmt.Sprint("Thing", namespace, "x", n), Name: "a", UID: "u"}
			ref.Namespace = fmt.Sprint("n", namespace)
			idle.misses(ref)
		}
		if want := min(maxMissing*(namespace+1), 100); len(idle.kinds) != want {
			t.Errorf("%d kinds of %d namespaces, want %d", len(idle.kinds), namespace+1, want)
		}
	}
}

// Whoever may create Events chooses which kinds are read, and a page of one may take pageBytes: few are read at once, and one that hangs
// does not keep the others waiting for long.
func TestFewPagesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{hangs: true, objects: []*metav1.PartialObjectMetadata{object("a", "a1", "x")}}
		c := New(s, s, 1<<20, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.Run(ctx) })
		defer running.Wait()
		defer cancel()
		known := func() (n int) {
			for kind := range 20 {
				ref := thing("a", "a1")
				ref.Kind = fmt.Sprint("Thing", kind)
				if !c.misses(ref) {
					n++
				}
			}
			return n
		}
		for range 2 { // so many may be looked for at once
			known()
			synctest.Wait()
		}
		s.mu.Lock()
		if len(s.resolved) != 20 || s.hung != maxPages {
			t.Errorf("%d pages are read at once, of %d kinds", s.hung, len(s.resolved))
		}
		s.hangs = false
		s.mu.Unlock()
		time.Sleep(pageTimeout + time.Second)
		if n := known(); n != 20-maxPages {
			t.Errorf("%d kinds are known once the first pages have timed out", n)
		}
	})
}

// TestNodes: the kubelet's references to its Node have no version, and the name as uid.
func TestNodes(t *testing.T) {
	node := object("n1", "3b1f", "node")
	node.Namespace = ""
	s := &server{objects: []*metav1.PartialObjectMetadata{node}}
	c, _ := run(t, s, nil)
	ref := delta.Reference{Kind: "Node", Name: "n1", UID: "n1"}
	eventually(t, "the node", func() bool { return c.knows(ref, `{"labels":{"app":"node"}}`) })
	if ref.UID = "3b1f"; !c.knows(ref, `{"labels":{"app":"node"}}`) {
		t.Error("its uid should do as well")
	}
	if ref.UID = ""; !c.misses(ref) {
		t.Error("without a uid it is known")
	}
}

// TestForeignObjects: whoever may write Events in one namespace reads nothing of another one, and nothing of objects that
// have no namespace.
func TestForeignObjects(t *testing.T) {
	mine, node := object("mine", "m1", "mine"), object("n1", "3b1f", "node")
	mine.Namespace, node.Namespace = "mine", ""
	s := &server{objects: []*metav1.PartialObjectMetadata{object("a", "a1", "one"), mine, node}}
	c, _ := run(t, s, nil)
	eventually(t, "the things and the nodes are read", func() bool {
		return !c.misses(thing("a", "a1")) && !c.misses(delta.Reference{Kind: "Node", Name: "n1", UID: "n1"})
	})
	for _, forged := range []struct {
		event string // its namespace
		about delta.Reference
	}{
		{"mine", thing("a", "a1")},
		{"default", thing("a", "a1")},
		{"", thing("a", "a1")},
		{"mine", delta.Reference{Kind: "Thing", Namespace: "mine", Name: "a", UID: "a1"}},
		{"mine", delta.Reference{Kind: "Node", Namespace: "mine", Name: "n1", UID: "3b1f"}},
		{"mine", delta.Reference{Kind: "Node", Name: "n1", UID: "n1"}},
		{"mine", delta.Reference{Kind: "Node", Namespace: "default", Name: "n1", UID: "n1"}},
		{"kube-system", delta.Reference{Kind: "Node", Name: "n1", UID: "n1"}},
	} {
		if metadata, ok := c.Lookup(forged.event, forged.about); ok {
			t.Errorf("an Event in %q about %+v gets %s", forged.event, forged.about, metadata)
		}
	}
	own := thing("mine", "m1")
	if own.Namespace = "mine"; c.misses(own) {
		t.Error("an object of the Event's own namespace is not known")
	}
	for _, ref := range []delta.Reference{{Kind: "Other", Namespace: "shop", Name: "a", UID: "a1"}, {Kind: "Other", Namespace: "mine", Name: "a"}} {
		c.Lookup("mine", ref)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.kinds) != 2 {
		t.Errorf("%d kinds are watched, want two: an Event that gets nothing starts no watch", len(c.kinds))
	}
}

// TestSecrets: an annotation of a Secret may hold its data, in whatever form.
func TestSecrets(t *testing.T) {
	secret := object("a", "a1", "one")
	secret.Annotations = map[string]string{"copy": "planted"}
	s := &server{objects: []*metav1.PartialObjectMetadata{secret}}
	c, _ := run(t, s, nil)
	ref := thing("a", "a1")
	ref.Kind = "Secret"
	eventually(t, "it is read", func() bool { return !c.misses(ref) })
	if !c.knows(ref, `{"labels":{"app":"one"}}`) {
		t.Error("got more than its labels")
	}
}

// TestVersions: one kind is watched once, in whatever version it is named.
func TestVersions(t *testing.T) {
	s := &server{objects: []*metav1.PartialObjectMetadata{object("a", "a1", "one")}}
	c, _ := run(t, s, nil)
	ref := thing("a", "a1")
	eventually(t, "it is read", func() bool { return !c.misses(ref) })
	ref.APIVersion = "v2"
	missed := c.misses(ref)
	s.do(func() {
		if missed || len(s.resolved) != 1 {
			t.Errorf("another version is not known, or looked for: %q", s.resolved)
		}
	})
}

// TestKindsThatCannotBe never reach the table of kinds, let alone the path of a request.
func TestKindsThatCannotBe(t *testing.T) {
	c := New(nil, nil, 0, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	for _, ref := range []delta.Reference{
		{APIVersion: "../../api/v1", Kind: "Secret"},
		{APIVersion: "../v1", Kind: "Secret"},
		{APIVersion: "a/b/c", Kind: "X"},
		{APIVersion: "v1?watch=1", Kind: "X"},
		{APIVersion: "v1", Kind: strings.Repeat("X", 1000)},
		{APIVersion: strings.Repeat("x", 1000) + "/v1", Kind: "X"},
		{APIVersion: "v1", Kind: "a b"},
		{APIVersion: "v1", Kind: ""},
	} {
		ref.Name, ref.UID = "a", "u"
		if !c.misses(ref) || len(c.kinds) > 0 {
			t.Errorf("%+v is looked for", ref)
		}
	}
}

// TestFewWarnings: kinds that do not exist, of which an Event can name any number, are few lines in the log.
func TestFewWarnings(t *testing.T) {
	c, told := run(t, &server{}, func(c *Cache) { c.backoff.Duration = time.Hour }) // each kind is looked for once
	const kinds = 3 * warningsAtOnce
	for n := range kinds {
		forged := thing("a", "a1")
		forged.Kind, forged.Namespace = fmt.Sprint("Nothing", n), fmt.Sprint("n", n%5)
		c.misses(forged)
	}
	eventually(t, "all are looked for", func() bool {
		return told.count("WARN"+cannotBeRead)+told.count("DEBUG"+cannotBeRead) >= kinds
	})
	if n := told.count("WARN" + cannotBeRead); n != warningsAtOnce {
		t.Errorf("%d warnings, want %d", n, warningsAtOnce)
	}
}

// TestKindsMakeRoom: a kind that does not exist makes room for another at once, one that does only when it is idle.
func TestKindsMakeRoom(t *testing.T) {
	s := &server{objects: []*metav1.PartialObjectMetadata{object("a", "a1", "one")}}
	c, told := run(t, s, func(c *Cache) { c.maxKinds = 2 })
	now := time.Now()
	c.mu.Lock()
	c.now = func() time.Time { return now }
	c.mu.Unlock()
	ref := func(kind string) delta.Reference {
		r := thing("a", "a1")
		r.Kind = kind
		return r
	}
	eventually(t, "the first", func() bool { return !c.misses(ref("Thing")) })
	for n := range 5 {
		c.misses(ref(fmt.Sprint("Nothing", n)))
	}
	eventually(t, "the second, in the place of one that does not exist", func() bool { return !c.misses(ref("ThingB")) })
	for range 3 {
		if !c.misses(ref("ThingC")) {
			t.Error("a third kind is watched")
		}
	}
	if c.misses(ref("Thing")) || c.misses(ref("ThingB")) || told.count("WARN there are Events about too many kinds of objects: the metadata of further kinds is not looked up") != 1 {
		t.Errorf("a kind that is in use had to go, or that was not logged once: %v", told.lines)
	}
	before := c.bytes()
	c.mu.Lock()
	now = now.Add(idleFor)
	c.mu.Unlock()
	c.misses(ref("Thing")) // not idle
	eventually(t, "the third, in the place of the idle one", func() bool { return !c.misses(ref("ThingC")) })
	if c.misses(ref("Thing")) || c.bytes() > before+100 {
		t.Errorf("%d bytes, %d before", c.bytes(), before)
	}
}

// slowly is a resolver that answers twice a second, as source.Kinds does.
type slowly struct {
	*server
	limiter flowcontrol.RateLimiter
}

func (s slowly) ResourceOf(ctx context.Context, kind schema.GroupKind) (schema.GroupVersionResource, bool, error) {
	if err := s.limiter.Wait(ctx); err != nil {
		return schema.GroupVersionResource{}, false, err
	}
	return s.server.ResourceOf(ctx, kind)
}

// TestForgedKindsOfOthers: however many kinds that do not exist the Events of some namespaces name, a kind that Events of another one
// are about is soon known.
func TestForgedKindsOfOthers(t *testing.T) {
	for _, test := range []struct{ namespaces, perSecond int }{{1, 1}, {1, 5}, {1, 100}, {3, 100}} {
		t.Run(fmt.Sprintf("%d namespaces, %d Events a second", test.namespaces, test.perSecond), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &server{version: 1, objects: []*metav1.PartialObjectMetadata{object("a", "a1", "x")}}
				c := New(slowly{s, flowcontrol.NewTokenBucketRateLimiter(2, 40)}, s, 1<<20, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { c.Run(ctx) })
				defer running.Wait()
				defer cancel()
				const minutes = 2
				for n := range 60 * minutes * test.perSecond {
					forged := thing("a", "a1")
					forged.Kind, forged.Namespace = fmt.Sprint("Forged", n), fmt.Sprint("tenant-", n%test.namespaces)
					c.misses(forged)
					time.Sleep(time.Second / time.Duration(test.perSecond))
					if n < 60*test.perSecond || n%test.perSecond > 0 {
						continue
					}
					if ref := thing("a", "a1"); !c.misses(ref) {
						t.Logf("known after %v", time.Duration(n/test.perSecond-60)*time.Second)
						return
					}
				}
				s.do(func() { t.Errorf("not known within a minute; %d kinds were looked for", len(s.resolved)) })
			})
		})
	}
}
