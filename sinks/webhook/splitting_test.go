package webhook

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
)

// TestMixedBatch is what a dead letter sink of several pipelines gets.
func TestMixedBatch(t *testing.T) {
	r := newReceiver(t, nil)
	sink := open(t, func(c *Config) { c.URL, c.Batch.MaxRecords = r.url(), 10 })
	batch := records(5, "a", "b")
	batch[1].BatchContentType, batch[2].BatchContentType = "", ""
	if err := sink.Deliver(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
	var shapes []string
	for _, body := range r.bodies {
		shapes = append(shapes, fmt.Sprintf("%c%d", body[0], strings.Count(string(body), `"n":`)))
	}
	if want := []string{"[1", "{1", "{1", "[2"}; !slices.Equal(shapes, want) {
		t.Errorf("got requests %q, want %q", shapes, want)
	}
}

func TestSplitting(t *testing.T) {
	r := newReceiver(t, nil)
	sink := open(t, func(c *Config) { c.URL, c.Batch.MaxRecords = r.url(), 100 })
	batch := records(64, "a", "b", "c", "d", "e", "f", "g", "h")
	const bad = 17 // the third record of "b"
	r.poisoned[batch[bad].ID] = true
	errs := sinks.PerRecord(sink.Deliver(t.Context(), batch), len(batch))
	for i, err := range errs {
		class := sinks.Classify(err)
		switch {
		case i == bad:
			if class == nil || !class.Permanent || class.Reason != sinks.ReasonRejected {
				t.Errorf("bad record: got %v", err)
			}
		case batch[i].Key == batch[bad].Key && i > bad:
			if class == nil || class.Permanent {
				t.Errorf("record %d, behind the bad one: got %v, want it held", i, err)
			}
		case err != nil:
			t.Errorf("record %d: got %v, want it acknowledged", i, err)
		}
	}
	if got := len(r.requests); got > 13 { // 1 + 2 per halving of 64
		t.Errorf("got %d requests to find one record of 64", got)
	}
}

// TestSplittingBySize: a receiver that takes smaller requests only gets them; what is too large alone is refused.
func TestSplittingBySize(t *testing.T) {
	for _, statuses := range [][]int{{400, 413}, {}} { // 413 is about the size of the request, permanent or not
		r := newReceiver(t, nil)
		r.setAnswer(func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
			if len(body) > 1500 {
				w.WriteHeader(http.StatusRequestEntityTooLarge)
			}
			return len(body) <= 1500
		})
		sink := open(t, func(c *Config) { c.URL, c.Batch.MaxRecords, c.PermanentStatuses = r.url(), 100, statuses })
		batch := records(32, "a", "b", "c", "d", "e", "f", "g", "h")
		if err := sink.Deliver(t.Context(), batch); err != nil {
			t.Errorf("permanent %v: %v", statuses, err)
		}
		var stored []string
		for _, s := range r.stored {
			stored = append(stored, string(s.Body))
		}
		var want []string
		for _, record := range batch {
			want = append(want, string(record.Body))
		}
		if !slices.Equal(stored, want) {
			t.Errorf("permanent %v: got %d records, want all %d in order", statuses, len(stored), len(want))
		}
		batch[5].Body = []byte(`{"id":"large","text":"` + strings.Repeat("x", 2000) + `"}`)
		errs := sinks.PerRecord(sink.Deliver(t.Context(), batch[:8]), 8)
		class := sinks.Classify(errs[5])
		if class == nil || class.Permanent != (len(statuses) > 0) || class.Reason != sinks.ReasonTooLarge {
			t.Errorf("permanent %v: got %v for the large record", statuses, errs[5])
		}
	}
}

// TestPermanentStatuses: the configuration decides, for single records and for arrays.
func TestPermanentStatuses(t *testing.T) {
	r := newReceiver(t, nil)
	bad := records(8, "a", "b", "c", "d", "e", "f", "g", "h")[3]
	code := 0
	r.setAnswer(func(w http.ResponseWriter, _ *http.Request, body []byte) bool {
		if strings.Contains(string(body), bad.ID) {
			w.WriteHeader(code)
			return false
		}
		return true
	})
	sink := open(t, func(c *Config) { c.URL, c.Batch.MaxRecords, c.PermanentStatuses = r.url(), 10, []int{409, 451, 500} })
	for status, permanent := range map[int]bool{400: false, 401: false, 403: false, 404: false, 422: false, 409: true, 451: true, 500: true, 503: false} {
		code = status
		errs := sinks.PerRecord(sink.Deliver(t.Context(), records(8, "a", "b", "c", "d", "e", "f", "g", "h")), 8)
		for i, err := range errs {
			class := sinks.Classify(err)
			switch {
			case permanent && i != 3 && err != nil:
				t.Errorf("%d: record %d, a neighbour: got %v", status, i, err)
			case i == 3 && (class == nil || class.Permanent != permanent):
				t.Errorf("%d: got %v, want it permanent %t", status, err, permanent)
			case !permanent && class == nil:
				t.Errorf("%d: record %d is acknowledged, and its request was refused", status, i)
			}
		}
	}
}

// TestSplittingStops checks that a receiver that goes away while a batch is narrowed down is left alone.
func TestSplittingStops(t *testing.T) {
	r := newReceiver(t, nil)
	sink := open(t, func(c *Config) { c.URL, c.Batch.MaxRecords = r.url(), 100 })
	requests := 0
	r.setAnswer(func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
		code := []int{http.StatusBadRequest, http.StatusOK, http.StatusServiceUnavailable, http.StatusOK}[min(requests, 3)]
		requests++
		w.WriteHeader(code)
		return code == http.StatusOK
	})
	errs := sinks.PerRecord(sink.Deliver(t.Context(), records(8, "a", "b", "c", "d", "e", "f", "g", "h")), 8)
	for i, err := range errs {
		if got, want := err == nil, i < 4; got != want {
			t.Errorf("record %d: got %v, want acknowledged %t", i, err, want)
		}
		if err != nil && sinks.Classify(err).Reason != sinks.ReasonUnavailable {
			t.Errorf("record %d: got %v, want it unavailable", i, err)
		}
	}
	if requests != 3 {
		t.Errorf("got %d requests, want 3", requests)
	}
}

func TestStatuses(t *testing.T) {
	r := newReceiver(t, nil)
	sink := open(t, func(c *Config) { c.URL = r.url() })
	tests := []struct {
		code      int
		reason    sinks.Reason // empty: accepted
		permanent bool
	}{
		{200, "", false},
		{202, "", false},
		{204, "", false},
		{304, sinks.ReasonNotFound, false},
		{400, sinks.ReasonRejected, true},
		{401, sinks.ReasonUnauthorized, false},
		{403, sinks.ReasonUnauthorized, false},
		{404, sinks.ReasonNotFound, false},
		{405, sinks.ReasonOther, false},
		{408, sinks.ReasonTimeout, false},
		{409, sinks.ReasonOther, false},
		{410, sinks.ReasonNotFound, false},
		{413, sinks.ReasonTooLarge, true},
		{415, sinks.ReasonRejected, true},
		{422, sinks.ReasonRejected, true},
		{429, sinks.ReasonThrottled, false},
		{500, sinks.ReasonUnavailable, false},
		{502, sinks.ReasonUnavailable, false},
		{503, sinks.ReasonUnavailable, false},
	}
	for _, test := range tests {
		t.Run(fmt.Sprint(test.code), func(t *testing.T) {
			r.setAnswer(func(w http.ResponseWriter, _ *http.Request, _ []byte) bool {
				w.WriteHeader(test.code)
				return false
			})
			class := sinks.Classify(sink.Deliver(t.Context(), records(1, "a")))
			switch {
			case test.reason == "":
				if class != nil {
					t.Errorf("got %v, want it accepted", class)
				}
			case class == nil:
				t.Error("got it accepted")
			case class.Reason != test.reason || class.Permanent != test.permanent:
				t.Errorf("got %s, permanent %t; want %s, %t", class.Reason, class.Permanent, test.reason, test.permanent)
			}
		})
	}
}
