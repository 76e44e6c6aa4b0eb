// Package sourcetest plays an API server for tests, with the faults that a real one shows but not on demand: a watch
// cut in the middle of a line, a refusal as an HTTP answer or inside the stream, an expired continue token. The
// end-to-end tests run against a real one.
package sourcetest

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// namespaces have no namespace. All of them are what a selector selects: removing one stands for taking its label away, too.
const namespaces = "namespaces"

// Things and Gadgets are the resources that the server has, beside namespaces.
var (
	Things  = schema.GroupVersionResource{Version: "v1", Resource: "things"}
	Gadgets = schema.GroupVersionResource{Version: "v1", Resource: "gadgets"}
)

// Server is the API server. Its methods may be called at any time.
type Server struct {
	*httptest.Server
	// NoWatchList makes it turn watch-lists down, InStream refuse history inside the stream instead of by an HTTP
	// answer, and PageSize cut pages shorter than the limit in the request. They are set before the first request.
	NoWatchList, InStream bool
	PageSize              int
	// Inconsistent makes the answer to an expired continue token hold another one, for the rest of the present state, as a real
	// server does.
	Inconsistent bool
	// NoBookmarks makes it send none, as where there is no watch cache.
	NoBookmarks bool
	// Defined makes it say that CRDs define the resources.
	Defined bool
	// TextVersions makes resource versions texts: "v" and the number.
	TextVersions bool
	// Labels returns the labels of an object. Without it label selectors select everything. It is set before the first request.
	Labels func(Object) labels.Set
	// Data is the value of a field that every object has, without what JSON escapes; without it there is none. It is set
	// before the first request.
	Data func(Object) string

	away sync.RWMutex // locked while the server takes no request

	mu      sync.Mutex
	changed *sync.Cond // broadcast on every write and every cut
	version int
	floor   int // the history before it is forgotten
	states  int // so are the states before it
	history []Change
	cuts    int // raised to end all watches
	cutLine bool
	// cutBehind is how many more DELETEDs are sent before a watch is cut; 0 for no cut.
	cutBehind int
	missing   bool // the resources do not exist
	unserved  map[string]bool
	silent    bool // watches send no changes
	denials   int  // requests to answer with denial
	denial    int
	refusals  int // 410s sent
	pages     int // requests to list
}

// Object is one version of an object.
type Object struct {
	Resource, Namespace, Name string
	// Created is the version of its creation, that its uid is made of.
	Created, Version int
}

// UID is "u" and the version of its creation.
func (o Object) UID() string { return fmt.Sprint("u", o.Created) }

func (s *Server) json(o Object) string {
	kind := kindOf(o.Resource)
	data := ""
	if s.Data != nil {
		data = fmt.Sprintf(`,"data":"%s"`, s.Data(o))
	}
	return fmt.Sprintf(`{"apiVersion":"v1","kind":%q,"metadata":{"name":%q,"namespace":%q,"uid":%q,"resourceVersion":%q,"managedFields":[{"manager":"m"}]}%s}`,
		kind, o.Name, o.Namespace, o.UID(), s.resourceVersion(o.Version), data)
}

func (s *Server) resourceVersion(version int) string {
	if s.TextVersions {
		return fmt.Sprint("v", version)
	}
	return strconv.Itoa(version)
}

// number is the version that a resource version stands for; 0 if that is empty.
func number(resourceVersion string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(resourceVersion, "v"))
	return n
}

func kindOf(resource string) string {
	return map[string]string{Things.Resource: "Thing", Gadgets.Resource: "Gadget", namespaces: "Namespace"}[resource]
}

// Change is an entry of the server's history.
type Change struct {
	Type string // ADDED, MODIFIED, DELETED
	Object
}

// ID is <uid>/<version>/<type>.
func (c Change) ID() string { return fmt.Sprintf("%s/%d/%s", c.UID(), c.Version, c.Type) }

// New starts a server at version 10 that ends with the test.
func New(t interface{ Cleanup(func()) }) *Server {
	s := &Server{version: 10, PageSize: 3}
	s.changed = sync.NewCond(&s.mu)
	s.Server = httptest.NewServer(http.HandlerFunc(s.serve))
	t.Cleanup(func() {
		s.Cut(false)
		s.Close()
	})
	return s
}

// Write changes an object: it is created if absent, else modified, or deleted. The name is "name", of a thing in the
// namespace ns, or "namespace/name", either behind "gadgets:" for a gadget, or "namespaces:/name". Each write takes the next version.
func (s *Server) Write(name string, remove bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := Object{Resource: Things.Resource, Namespace: "ns", Name: name}
	if resource, rest, ok := strings.Cut(o.Name, ":"); ok {
		o.Resource, o.Name = resource, rest
	}
	if namespace, rest, ok := strings.Cut(o.Name, "/"); ok {
		o.Namespace, o.Name = namespace, rest
	}
	old, exists := s.at(s.version, o.Resource)[o.Namespace+"/"+o.Name]
	if remove && !exists {
		return
	}
	s.version++
	kind := "MODIFIED"
	o.Created, o.Version = old.Created, s.version
	switch {
	case remove:
		kind = "DELETED"
	case !exists:
		kind = "ADDED"
		o.Created = s.version
	}
	s.history = append(s.history, Change{kind, o})
	s.changed.Broadcast()
}

// at is the state at a version, by namespace and name.
func (s *Server) at(version int, resource string) map[string]Object {
	state := map[string]Object{}
	for _, c := range s.history {
		switch key := c.Namespace + "/" + c.Name; {
		case c.Version > version || c.Resource != resource:
		case c.Type == "DELETED":
			delete(state, key)
		default:
			state[key] = c.Object
		}
	}
	return state
}

// State returns the present objects of a resource, by namespace and name.
func (s *Server) State(resource schema.GroupVersionResource) map[string]Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at(s.version, resource.Resource)
}

// History returns every change there was, forgotten ones too.
func (s *Server) History() []Change {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.history)
}

// Collection returns what a watch of a resource brings, in one namespace if that is not empty: the objects, and the version of the last change.
func (s *Server) Collection(resource schema.GroupVersionResource, namespace, labelSelector, fieldSelector string) (objects map[string]Object, last int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	objects = map[string]Object{}
	for _, c := range s.changes(newCollection(resource.Resource, namespace, labelSelector, fieldSelector)) {
		key := c.Namespace + "/" + c.Name
		if objects[key], last = c.Object, c.Version; c.Type == "DELETED" {
			delete(objects, key)
		}
	}
	return objects, last
}

// Version is the present one.
func (s *Server) Version() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// Refusals counts the 410s sent.
func (s *Server) Refusals() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.refusals
}

// Pages counts the requests to list.
func (s *Server) Pages() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.pages
}

// Cut ends every watch, in the middle of a line if requested.
func (s *Server) Cut(inLine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cuts++
	s.cutLine = inLine
	s.changed.Broadcast()
}

// SetSilent makes watches send no changes, or go on.
func (s *Server) SetSilent(silent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = silent
	s.changed.Broadcast()
}

// Expire deletes things of the namespace ns, as far as they exist, in one version, as etcd deletes the Events of a lease that ends.
func (s *Server) Expire(names ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	state := s.at(s.version, Things.Resource)
	s.version++
	for _, name := range names {
		o, exists := state["ns/"+name]
		if !exists {
			continue
		}
		o.Version = s.version
		s.history = append(s.history, Change{"DELETED", o})
	}
	s.changed.Broadcast()
}

// CutBehind ends the watch that sends a DELETED, once that many were sent.
func (s *Server) CutBehind(deletions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cutBehind = deletions
}

// Away ends every watch and runs change before it takes another request, so that no watch sees the change.
func (s *Server) Away(change func()) {
	s.away.Lock()
	defer s.away.Unlock()
	s.Cut(false)
	change()
}

// Compact forgets the history so far.
func (s *Server) Compact() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++ // something else was written meanwhile
	s.floor, s.states = s.version, s.version
}

// Restart forgets the history up to the present version, as the watch cache of an API server does that is started. No watch begins before it.
func (s *Server) Restart() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.floor = s.version
}

// CompactStates forgets the states so far, and keeps the history: etcd was compacted, and the watch cache reaches
// further back.
func (s *Server) CompactStates() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.states = s.version
}

// Remember gives back all that was forgotten, as another API server of the same cluster may.
func (s *Server) Remember() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.floor, s.states = 0, 0
}

// Deny answers that many of the next requests to list or watch with a status, or with a reset connection if it is 0.
func (s *Server) Deny(status, times int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.denial, s.denials = status, times
}

// SetMissing takes the resources away, with everything in them, or brings them back.
func (s *Server) SetMissing(missing bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missing = missing
	if !missing {
		return
	}
	s.cuts++ // no watch gets the deletions
	s.cutLine = false
	s.changed.Broadcast()
	for _, resource := range []string{Things.Resource, Gadgets.Resource} {
		for _, o := range s.at(s.version, resource) {
			s.version++
			o.Version = s.version
			s.history = append(s.history, Change{"DELETED", o})
		}
	}
	s.version++
	s.floor, s.states = s.version, s.version
}

// ServeGadgets makes gadgets exist, or not.
func (s *Server) ServeGadgets(served bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unserved = map[string]bool{Gadgets.Resource: !served}
	s.cuts++
	s.cutLine = false
	s.changed.Broadcast()
}

// SwitchOff takes the resources away, or brings them back as they were: no CRD defines them.
func (s *Server) SwitchOff(off bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.missing = off
	s.cuts++
	s.cutLine = false
	s.changed.Broadcast()
}
