package sourcetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

// This file serves the API: lists in pages, and watches.

// collection is what a request names: a resource, in one namespace if that is not empty, and what of it.
type collection struct {
	resource, namespace string
	labels              labels.Selector
	fields              fields.Selector
}

func collectionOf(r *http.Request) collection {
	path, query := strings.TrimPrefix(r.URL.Path, "/api/v1/"), r.URL.Query()
	namespace, resource := "", path
	if rest, ok := strings.CutPrefix(path, "namespaces/"); ok {
		namespace, resource, _ = strings.Cut(rest, "/")
	}
	return newCollection(resource, namespace, query.Get("labelSelector"), query.Get("fieldSelector"))
}

// newCollection ignores a selector that cannot be read.
func newCollection(resource, namespace, labelSelector, fieldSelector string) collection {
	c := collection{resource, namespace, labels.Everything(), fields.Everything()}
	if selector, err := labels.Parse(labelSelector); err == nil {
		c.labels = selector
	}
	if selector, err := fields.ParseSelector(fieldSelector); err == nil {
		c.fields = selector
	}
	return c
}

// holds reports whether an object is in a collection.
func (s *Server) holds(c collection, o Object) bool {
	return (c.namespace == "" || c.namespace == o.Namespace) && (s.Labels == nil || c.labels.Matches(s.Labels(o))) &&
		c.fields.Matches(fields.Set{"metadata.name": o.Name, "metadata.namespace": o.Namespace})
}

// changes returns the history of a collection, as its watches report it: an object that a change takes out of the collection is deleted.
func (s *Server) changes(in collection) (all []Change) {
	holds := map[string]bool{}
	for _, c := range s.history {
		if c.Resource != in.resource {
			continue
		}
		key := c.Namespace + "/" + c.Name
		before, after := holds[key], c.Type != "DELETED" && s.holds(in, c.Object)
		holds[key] = after
		switch {
		case !before && !after:
			continue
		case !before:
			c.Type = "ADDED"
		case !after:
			c.Type = "DELETED"
		}
		all = append(all, c)
	}
	return all
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	s.away.RLock()
	s.away.RUnlock() //nolint:staticcheck // a request waits until the server is back
	s.mu.Lock()
	defer s.mu.Unlock()
	query := r.URL.Query()
	in := collectionOf(r)
	known := kindOf(in.resource) != "" && !s.unserved[in.resource]
	switch {
	case r.URL.Path == "/api/v1/namespaces/kube-system":
		fmt.Fprint(w, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"kube-system","uid":"cluster","resourceVersion":"1"}}`)
	case r.URL.Path == "/api":
		fmt.Fprint(w, `{"kind":"APIVersions","versions":["v1"]}`)
	case r.URL.Path == "/apis":
		fmt.Fprint(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`)
	case r.URL.Path == "/api/v1":
		resources := `{"name":"things","singularName":"thing","namespaced":true,"kind":"Thing","verbs":["get","list","watch"]},
			{"name":"gadgets","singularName":"gadget","namespaced":true,"kind":"Gadget","verbs":["get","list","watch"]},
			{"name":"namespaces","singularName":"namespace","namespaced":false,"kind":"Namespace","verbs":["get","list","watch"]}`
		if s.missing {
			resources = ""
		}
		if s.unserved[Gadgets.Resource] {
			resources = strings.Replace(resources, "gadgets", "others/status", 1)
		}
		fmt.Fprintf(w, `{"kind":"APIResourceList","groupVersion":"v1","resources":[%s]}`, resources)
	case s.Defined && !s.missing && strings.HasSuffix(r.URL.Path, "/customresourcedefinitions"):
		fmt.Fprint(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"things"}}]}`)
	case !known || s.missing:
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
		s.list(w, in, query.Get("resourceVersion"), query.Get("continue"))
	case query.Get("sendInitialEvents") == "true" && s.NoWatchList:
		status(w, http.StatusUnprocessableEntity, metav1.StatusReasonInvalid)
	default:
		seconds, _ := strconv.Atoi(query.Get("timeoutSeconds"))
		s.watch(w, r, in, query.Get("resourceVersion"), query.Get("sendInitialEvents") == "true", seconds)
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

// list sends a page of the state, the present one or at an exact version. The continue token is "<version>/<key>":
// what comes after that key, as of that version. It expires once that version is forgotten.
func (s *Server) list(w http.ResponseWriter, in collection, exact, token string) {
	version, after := s.version, ""
	s.pages++
	if token != "" {
		exact, after, _ = strings.Cut(token, "/")
	}
	if exact != "" {
		version = number(exact)
	}
	if version < s.states {
		s.refusals++
		answer := statusObject(http.StatusGone, metav1.StatusReasonExpired)
		if s.Inconsistent && token != "" {
			answer.Continue = fmt.Sprintf("%d/%s", s.version, after)
		}
		w.WriteHeader(http.StatusGone)
		_ = json.NewEncoder(w).Encode(answer)
		return
	}
	state := s.at(version, in.resource)
	keys := slices.Sorted(maps.Keys(state))
	keys = slices.DeleteFunc(keys, func(key string) bool { return key <= after || !s.holds(in, state[key]) })
	next := ""
	if len(keys) > s.PageSize {
		keys = keys[:s.PageSize]
		next = fmt.Sprintf(`,"continue":"%d/%s"`, version, keys[len(keys)-1])
	}
	var items []string
	kind := kindOf(in.resource)
	for _, key := range keys {
		// A built-in resource's items come without apiVersion and kind.
		items = append(items, strings.Replace(s.json(state[key]), `"apiVersion":"v1","kind":"`+kind+`",`, "", 1))
	}
	fmt.Fprintf(w, `{"kind":"%sList","apiVersion":"v1","metadata":{"resourceVersion":%q%s},"items":[%s]}`,
		kind, s.resourceVersion(version), next, strings.Join(items, ","))
}

// watch sends changes. It ends no watch by itself; but of one with a short time-out it sends the bookmark that precedes the end, again and again.
func (s *Server) watch(w http.ResponseWriter, r *http.Request, in collection, from string, initial bool, seconds int) {
	position := number(from)
	if !initial && position < s.floor {
		s.refusals++
		if !s.InStream {
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
		for _, o := range s.at(position, in.resource) {
			if s.holds(in, o) {
				send("ADDED", s.json(o))
			}
		}
		send("BOOKMARK", fmt.Sprintf(`{"kind":"Thing","apiVersion":"v1","metadata":{"resourceVersion":%q,"annotations":{"k8s.io/initial-events-end":"true"}}}`, s.resourceVersion(position)))
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
		last := position
		for _, c := range s.changes(in) {
			if s.silent || c.Version <= position {
				continue
			}
			send(c.Type, s.json(c.Object))
			if last = c.Version; c.Type == "DELETED" && s.cutBehind > 0 {
				if s.cutBehind--; s.cutBehind == 0 {
					return
				}
			}
		}
		position = last
		if seconds < 10 && !s.silent && !s.NoBookmarks {
			position = s.version
			send("BOOKMARK", fmt.Sprintf(`{"kind":%q,"apiVersion":"v1","metadata":{"resourceVersion":%q}}`, kindOf(in.resource), s.resourceVersion(position)))
		}
		flush()
		s.changed.Wait()
	}
}
