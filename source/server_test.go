package source

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// apiServer plays an API server for one resource, v1/things, with the faults that a real one shows but not on demand:
// a watch cut in the middle of a line, a refusal as an HTTP answer or inside the stream, an expired continue token.
// The end-to-end tests run against a real one.
type apiServer struct {
	*httptest.Server

	mu      sync.Mutex
	changed *sync.Cond // broadcast on every write and every cut
	version int
	floor   int // the history up to here is forgotten
	objects map[string]thing
	history []change
	cuts    int // raised to end all watches
	cutLine bool
	missing bool // the resource does not exist
	noList  bool // no watch-list
	// deny answers a request to list or watch with a status; 0 lets it pass.
	deny     func(r *http.Request) int
	denials  int // requests to answer with denial
	denial   int
	refusals int // 410s sent
	inStream bool
	pageSize int
}

// thing is an object of the server.
type thing struct {
	name    string
	uid     int
	version int
}

func (o thing) json() string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Thing","metadata":{"name":%q,"namespace":"ns","uid":"u%d","resourceVersion":"%d","managedFields":[{"manager":"m"}]}}`,
		o.name, o.uid, o.version)
}

// change is an entry of the server's history.
type change struct {
	kind   string // ADDED, MODIFIED, DELETED
	object thing
}

func (c change) id() string {
	return fmt.Sprintf("u%d/%d/%s", c.object.uid, c.object.version, c.kind)
}

func newAPIServer(t testing.TB) *apiServer {
	s := &apiServer{version: 10, floor: 0, objects: map[string]thing{}, pageSize: 3}
	s.changed = sync.NewCond(&s.mu)
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		s.mu.Lock()
		s.cuts++
		s.changed.Broadcast()
		s.mu.Unlock()
		s.Close()
	})
	return s
}

// write changes the object: created if absent, else modified, or deleted.
func (s *apiServer) write(name string, remove bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, exists := s.objects[name]
	if remove && !exists {
		return
	}
	s.version++
	kind := "MODIFIED"
	switch {
	case remove:
		kind = "DELETED"
	case !exists:
		kind = "ADDED"
		o = thing{name: name, uid: s.version}
	}
	o.version = s.version
	if remove {
		delete(s.objects, name)
	} else {
		s.objects[name] = o
	}
	s.history = append(s.history, change{kind, o})
	s.changed.Broadcast()
}

// cut ends every watch, in the middle of a line if asked.
func (s *apiServer) cut(inLine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cuts++
	s.cutLine = inLine
	s.changed.Broadcast()
}

// compact forgets the history so far.
func (s *apiServer) compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++ // something else was written meanwhile
	s.floor = s.version
}

func (s *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	s.mu.Lock()
	defer s.mu.Unlock()
	query := r.URL.Query()
	switch {
	case r.URL.Path == "/api/v1":
		resources := `{"name":"things","singularName":"thing","namespaced":true,"kind":"Thing","verbs":["get","list","watch"]}`
		if s.missing {
			resources = ""
		}
		fmt.Fprintf(w, `{"kind":"APIResourceList","groupVersion":"v1","resources":[%s]}`, resources)
	case r.URL.Path != "/api/v1/things" || s.missing:
		status(w, http.StatusNotFound, metav1.StatusReasonNotFound)
	case s.denials > 0:
		s.denials--
		if s.denial == 0 {
			panic(http.ErrAbortHandler) // a reset connection
		}
		status(w, s.denial, map[int]metav1.StatusReason{
			403: metav1.StatusReasonForbidden, 429: metav1.StatusReasonTooManyRequests, 500: metav1.StatusReasonInternalError,
			503: metav1.StatusReasonServiceUnavailable, 504: metav1.StatusReasonTimeout,
		}[s.denial])
	case query.Get("watch") == "":
		s.list(w, query.Get("limit"), query.Get("continue"))
	case query.Get("sendInitialEvents") == "true" && s.noList:
		status(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	default:
		s.watch(w, r, query.Get("resourceVersion"), query.Get("sendInitialEvents") == "true")
	}
}

func status(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(statusObject(code, reason))
}

func statusObject(code int, reason metav1.StatusReason) metav1.Status {
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure",
		Code: int32(code), Reason: reason, Message: "a fault of the test",
	}
}

// list sends a page. The continue token is "<version>/<name>": the names after that one, as of that version, as long
// as nothing was compacted or written since; then it has expired, as a real one does after compaction.
func (s *apiServer) list(w http.ResponseWriter, _, token string) {
	after := ""
	if token != "" {
		version, name, _ := strings.Cut(token, "/")
		if version != strconv.Itoa(s.version) {
			s.refusals++
			status(w, http.StatusGone, metav1.StatusReasonExpired)
			return
		}
		after = name
	}
	var names []string
	for name := range s.objects {
		if name > after {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	next := ""
	if len(names) > s.pageSize {
		names = names[:s.pageSize]
		next = fmt.Sprintf(`,"continue":"%d/%s"`, s.version, names[len(names)-1])
	}
	var items []string
	for _, name := range names {
		// A built-in resource's items come without apiVersion and kind.
		items = append(items, strings.Replace(s.objects[name].json(), `"apiVersion":"v1","kind":"Thing",`, "", 1))
	}
	fmt.Fprintf(w, `{"kind":"ThingList","apiVersion":"v1","metadata":{"resourceVersion":"%d"%s},"items":[%s]}`,
		s.version, next, strings.Join(items, ","))
}

func (s *apiServer) watch(w http.ResponseWriter, r *http.Request, from string, initial bool) {
	position, _ := strconv.Atoi(from)
	if !initial && position < s.floor {
		s.refusals++
		if !s.inStream {
			status(w, http.StatusGone, metav1.StatusReasonExpired)
			return
		}
		body, _ := json.Marshal(statusObject(http.StatusGone, metav1.StatusReasonExpired))
		fmt.Fprintf(w, `{"type":"ERROR","object":%s}`+"\n", body)
		return
	}
	send := func(kind, object string) { fmt.Fprintf(w, `{"type":"%s","object":%s}`+"\n", kind, object) }
	if initial {
		position = s.version
		for _, o := range s.objects {
			send("ADDED", o.json())
		}
		send("BOOKMARK", fmt.Sprintf(`{"kind":"Thing","apiVersion":"v1","metadata":{"resourceVersion":"%d","annotations":{"k8s.io/initial-events-end":"true"}}}`, position))
	}
	flush := w.(http.Flusher).Flush
	stop := make(chan struct{})
	defer close(stop)
	go func() { // the client going away must wake the loop
		select {
		case <-r.Context().Done():
			s.mu.Lock()
			s.changed.Broadcast()
			s.mu.Unlock()
		case <-stop:
		}
	}()
	cuts := s.cuts
	for r.Context().Err() == nil {
		if s.cuts != cuts {
			if s.cutLine {
				fmt.Fprint(w, `{"type":"MODIFIED","object":{"apiVersion":"v1","kind":"Th`)
				flush()
				panic(http.ErrAbortHandler)
			}
			return
		}
		for _, c := range s.history {
			if c.object.version > position {
				send(c.kind, c.object.json())
				position = c.object.version
			}
		}
		flush()
		s.changed.Wait()
	}
}
