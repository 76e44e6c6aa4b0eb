package enrich

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Objects whose labels take 1 MiB each, and one of several pages by itself, are read a few at a time. Small ones behind them are read
// in full pages again.
func TestLargePages(t *testing.T) {
	const large, small = 6, 300
	label := strings.Repeat("x", 1<<20)
	var mu sync.Mutex
	pages, served := 0, map[string]int{} // bytes of several large objects, by the page's continue token
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("watch") != "" {
			<-r.Context().Done()
			return
		}
		mu.Lock()
		defer mu.Unlock()
		pages++
		token := r.URL.Query().Get("continue")
		if served[token] > pageBytes {
			t.Errorf("a page of %d bytes was read", served[token])
		}
		from, _ := strconv.Atoi(token)
		limit, err := strconv.Atoi(r.URL.Query().Get("limit"))
		if err != nil {
			t.Errorf("limit: %v", err)
		}
		list := metav1.PartialObjectMetadataList{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"}}
		list.ResourceVersion = "1"
		bytes := 0
		for n := from; n < large+small && n < from+limit; n++ {
			o := object(fmt.Sprint("o", n), fmt.Sprint("u", n), "x")
			if n < large {
				size := len(label)
				if n == large-1 {
					size = 2 * pageBytes
				}
				o.Labels["app"] = strings.Repeat("x", size)
				bytes += size
			}
			list.Items = append(list.Items, *o)
		}
		if from+limit < large+small {
			list.Continue = fmt.Sprint(from + limit)
		}
		if served[list.Continue] = bytes; limit == 1 {
			served[list.Continue] = 0
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(list) // it is not read to the end
	}))
	defer api.Close()
	client, err := NewClient(&rest.Config{Host: api.URL, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	c := New(&server{}, client, 64<<20, prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { c.Run(ctx) })
	defer running.Wait()
	defer cancel()
	for n := range large + small {
		eventually(t, "the object is known", func() bool { return !c.misses(thing(fmt.Sprint("o", n), fmt.Sprint("u", n))) })
	}
	mu.Lock()
	defer mu.Unlock()
	if pages > 30 {
		t.Errorf("%d pages were read", pages)
	}
}
