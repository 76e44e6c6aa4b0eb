package source

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// clientOf talks to a server that answers as serve does.
func clientOf(t *testing.T, serve http.HandlerFunc) *Client {
	t.Helper()
	server := httptest.NewServer(serve)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	client, err := NewClient(&rest.Config{Host: server.URL}, false)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// during has the options of a watch that the server ends after a while.
func during(d time.Duration) metav1.ListOptions {
	return metav1.ListOptions{TimeoutSeconds: new(int64(d.Seconds()))}
}

// requests are all kinds of requests that a client sends.
func requests(client *Client) map[string]func(context.Context) error {
	c := collection{client: client, resource: sourcetest.Things}
	return map[string]func(context.Context) error{
		"cluster uid": func(ctx context.Context) error { _, err := client.ClusterUID(ctx); return err },
		"discovery":   func(ctx context.Context) error { _, err := client.resolve(ctx, sourcetest.Things); return err },
		"list":        func(ctx context.Context) error { _, err := c.list(ctx, metav1.ListOptions{Limit: 1}); return err },
		"watch":       func(ctx context.Context) error { _, err := c.watch(ctx, during(time.Minute)); return err },
	}
}

func TestErrorsAreTheServers(t *testing.T) {
	client := clientOf(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"things is forbidden: not you","reason":"Forbidden","code":403}`)
	})
	for name, request := range requests(client) {
		if err := request(t.Context()); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "not you") {
			t.Errorf("%s: got %v, want what the server said", name, err)
		}
	}
}

// A load balancer may take a connection whose other end is gone, and never answer.
func TestNoAnswer(t *testing.T) {
	client := clientOf(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	client.timeout = 50 * time.Millisecond
	for name, request := range requests(client) {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			if err := request(ctx); !errors.Is(err, errNoAnswer) || ctx.Err() != nil {
				t.Errorf("got %v, want %v", err, errNoAnswer)
			}
		})
	}
}

// A resource that the server cannot read, as while the webhook that converts its objects is down, is answered with a delay, over and over:
// that is no reason to leave the connection, which all watches share.
func TestRequestedDelaysLeaveNoConnection(t *testing.T) {
	more := make(chan struct{})
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if !strings.HasSuffix(r.URL.Path, "/others") {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		for range 2 {
			_, _ = fmt.Fprintln(w, `{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"Other","metadata":{"resourceVersion":"1"}}}`)
			_ = http.NewResponseController(w).Flush()
			select {
			case <-more:
			case <-r.Context().Done():
			}
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	client, err := NewClient(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: authority}}, false)
	if err != nil {
		t.Fatal(err)
	}
	others := sourcetest.Things
	others.Resource = "others"
	c := collection{client: client, resource: others}
	w, err := c.watch(t.Context(), during(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if _, err := w.next(); err != nil {
		t.Fatal(err)
	}
	client.timeout = 500 * time.Millisecond
	for name, request := range requests(client) {
		if err := request(t.Context()); !errors.Is(err, errNoAnswer) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	close(more)
	if _, err := w.next(); err != nil {
		t.Errorf("the watch beside them has ended: %v", err)
	}
}

// A connection that answers pings and swallows the rest is left: what is sent next goes over another one.
func TestSwallowedConnectionIsLeft(t *testing.T) {
	faults := map[string]struct {
		begins bool // the request is a watch that sends a bookmark first
		want   error
	}{
		"cluster uid": {want: errNoAnswer}, "discovery": {want: errNoAnswer}, "list": {want: errNoAnswer}, "watch": {want: errNoAnswer},
		"bookmarks stop": {begins: true, want: errNoBookmarks}, "overdue": {begins: true, want: errOverdue},
	}
	for name, fault := range faults {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var swallows atomic.Value // the address of the connection that does
			server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch first := swallows.CompareAndSwap(nil, r.RemoteAddr); {
				case !first && swallows.Load() == r.RemoteAddr:
					<-r.Context().Done()
				case isWatch(r):
					_, _ = fmt.Fprintln(w, `{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"Thing","metadata":{"resourceVersion":"1"}}}`)
					_ = http.NewResponseController(w).Flush()
					<-r.Context().Done()
				default:
					_, _ = fmt.Fprint(w, `{"kind":"ThingList","apiVersion":"v1","metadata":{"resourceVersion":"1"}}`)
				}
			}))
			server.EnableHTTP2 = true
			server.StartTLS()
			t.Cleanup(func() {
				server.CloseClientConnections()
				server.Close()
			})
			authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
			client, err := NewClient(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: authority}}, false)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			c := collection{client: client, resource: sourcetest.Things}
			if fault.begins {
				w, err := c.watch(ctx, during(time.Hour))
				if err != nil {
					t.Fatal(err)
				}
				defer w.Close()
				if _, err := w.next(); err != nil {
					t.Fatal(err)
				}
				if client.bookmark = 50 * time.Millisecond; errors.Is(fault.want, errOverdue) {
					client.timeout, client.bookmark, w.body.(*watchBody).end = client.bookmark, time.Hour, time.Now()
				}
				if _, err := w.next(); !errors.Is(err, fault.want) {
					t.Fatalf("got %v, want %v", err, fault.want)
				}
			} else {
				if _, err := c.list(ctx, metav1.ListOptions{Limit: 1}); err != nil {
					t.Fatal(err)
				}
				client.timeout = 50 * time.Millisecond
				if err := requests(client)[name](ctx); !errors.Is(err, fault.want) {
					t.Fatalf("got %v, want %v", err, fault.want)
				}
			}
			client.timeout = 15 * time.Second
			// Until the transport has seen that the connection is closed, it may still send on it; that fails at once.
			for {
				err := requests(client)["list"](ctx)
				if errors.Is(err, errNoAnswer) || ctx.Err() != nil {
					t.Fatalf("the connection is still in use: %v", err)
				}
				if err == nil {
					break
				}
			}
		})
	}
}

// Once it has begun, a watch may be silent until its time-out.
func TestSilentWatchGoesOn(t *testing.T) {
	const timeout = 500 * time.Millisecond
	client := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-time.After(3 * timeout):
		case <-r.Context().Done():
		}
		_, _ = fmt.Fprintln(w, `{"type":"ADDED","object":{"apiVersion":"v1","kind":"Thing","metadata":{"name":"a","uid":"u","resourceVersion":"1"}}}`)
	})
	client.timeout = timeout
	c := collection{client: client, resource: sourcetest.Things}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	w, err := c.watch(ctx, during(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	if e, err := w.next(); err != nil || e.kind != watch.Added || e.object.Name() != "a" {
		t.Errorf("got %+v, %v", e, err)
	}
}

// A connection that died without a word, with a proxy that keeps its own part of it open, is given up when the server
// should have ended the watch. What arrived before is read, however late.
func TestWatchIsGivenUpWhenItIsOverdue(t *testing.T) {
	client := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintln(w, `{"type":"ADDED","object":{"apiVersion":"v1","kind":"Thing","metadata":{"name":"a","uid":"u","resourceVersion":"1"}}}`)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	})
	client.timeout = 500 * time.Millisecond
	c := collection{client: client, resource: sourcetest.Things}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	w, err := c.watch(ctx, during(time.Second))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	w.body.(*watchBody).end = time.Now() // as for a handler that blocked until then
	if e, err := w.next(); err != nil || e.kind != watch.Added {
		t.Errorf("got %+v, %v", e, err)
	}
	if _, err := w.next(); !errors.Is(err, errOverdue) || isDisconnect(err) {
		t.Errorf("got %v, want %v", err, errOverdue)
	}
}

// Pages of large objects are read in parts.
func TestPagesOfLargeObjects(t *testing.T) {
	const objects, size = 40, 1 << 20
	large := strings.Repeat("x", size)
	client := clientOf(t, func(w http.ResponseWriter, r *http.Request) {
		limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
		from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
		to, next := min(from+limit, objects), ""
		if to < objects {
			next = strconv.Itoa(to)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = fmt.Fprintf(w, `{"kind":"ThingList","apiVersion":"v1","metadata":{"resourceVersion":"5","continue":%q},"items":[`, next)
		for n := from; n < to; n++ {
			_, _ = fmt.Fprintf(w, `%.*s{"metadata":{"name":"%d","uid":"u","resourceVersion":"5"},"data":"%s"}`, min(n-from, 1), ",", n, large)
		}
		_, _ = fmt.Fprint(w, "]}")
	})
	c := collection{client: client, resource: sourcetest.Things}
	read := 0
	for pages, last := c.pages(), false; !last; {
		p, err := pages.read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		last = p.next == ""
		if len(p.objects) > pageBytes/size {
			t.Fatalf("a page of %d objects", len(p.objects))
		}
		for _, object := range p.objects {
			if object.Name() != strconv.Itoa(read) {
				t.Fatalf("got %s, want %d", object.Name(), read)
			}
			read++
		}
	}
	if read != objects {
		t.Errorf("got %d objects, want %d", read, objects)
	}
}

// A connection is made as the configuration has it: through its proxy, or by its own function.
func TestConnectsAsConfigured(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"kind":"Namespace","apiVersion":"v1","metadata":{"uid":%q}}`, r.Host)
	}))
	defer server.Close()
	for name, config := range map[string]*rest.Config{
		"a proxy": {Proxy: func(*http.Request) (*url.URL, error) { return url.Parse(server.URL) }},
		"a function": {Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, server.Listener.Addr().String())
		}},
	} {
		config.Host = "http://elsewhere.invalid"
		client, err := NewClient(config, false)
		if err != nil {
			t.Fatal(err)
		}
		if uid, err := client.ClusterUID(t.Context()); err != nil || uid != "elsewhere.invalid" {
			t.Errorf("%s: got %q, %v", name, uid, err)
		}
	}
}

// A watch whose bookmarks stop, as of an aggregated API that hangs, ends alone: the others go on with the connection that all share.
func TestWatchThatHangsEndsAlone(t *testing.T) {
	hangs := make(chan struct{})
	addresses := make(chan string, 10)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if !isWatch(r) {
			fmt.Fprint(w, `{}`)
			return
		}
		addresses <- r.RemoteAddr
		fmt.Fprintln(w, `{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"Thing","metadata":{"resourceVersion":"1"}}}`)
		_ = http.NewResponseController(w).Flush()
		if strings.HasSuffix(r.URL.Path, "/gadgets") {
			<-hangs
			fmt.Fprintln(w, `{"type":"BOOKMARK","object":{"apiVersion":"v1","kind":"Gadget","metadata":{"resourceVersion":"2"}}}`)
			return
		}
		<-r.Context().Done()
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	authority := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	client, err := NewClient(&rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: authority}}, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	open := func(resource schema.GroupVersionResource) *frames {
		c := collection{client: client, resource: resource}
		f, err := c.watch(ctx, during(time.Hour))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(f.Close)
		if _, err := f.next(); err != nil {
			t.Fatal(err)
		}
		return f
	}
	other, hung := open(sourcetest.Gadgets), open(sourcetest.Things)
	if a, b := <-addresses, <-addresses; a != b {
		t.Fatalf("two connections: %s, %s", a, b)
	}
	client.bookmark = 50 * time.Millisecond
	if _, err := hung.next(); !errors.Is(err, errNoBookmarks) {
		t.Fatalf("got %v", err)
	}
	client.bookmark = bookmarkTimeout
	close(hangs)
	if _, err := other.next(); err != nil {
		t.Errorf("the other watch has ended: %v", err)
	}
}
