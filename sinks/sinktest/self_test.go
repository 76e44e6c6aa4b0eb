package sinktest

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
)

// memory is a peer and a sink in one. With a defect, the suite must fail.
type memory struct {
	sinks.Common
	defect string
	secret string
	logger *slog.Logger // set by Open

	mu       sync.Mutex // guards what follows
	stored   []Stored
	failing  bool
	denied   bool
	away     bool
	large    bool          // the last record was over MaxBytes
	hung     chan struct{} // not nil while hanging; closed by mend
	poisoned map[string]bool
	refused  map[string]bool
}

func (m *memory) Open(_ context.Context, env sinks.Env) (sinks.Sink, error) {
	if m.defect == "open waits" && m.away {
		return nil, errors.New("away")
	}
	m.logger = env.Logger
	return m, nil
}

func (m *memory) Close(context.Context) error {
	m.mu.Lock()
	hung := m.hung
	m.mu.Unlock()
	if hung != nil && m.defect == "close waits" {
		<-hung
	}
	return nil
}

func (m *memory) Validate() []sinks.Fault {
	faults := m.Common.Validate()
	if m.defect == "warns of its defaults" {
		faults = append(faults, sinks.Fault{Path: "order", Message: "is not kept", Warning: true})
	}
	return faults
}

func (m *memory) Check(ctx context.Context) error {
	m.mu.Lock()
	hung, away, denied := m.hung, m.away, m.denied
	if m.defect == "check sends" {
		m.stored = append(m.stored, Stored{Body: []byte("{}")})
	}
	m.mu.Unlock()
	switch {
	case m.defect == "check sees nothing":
		return nil
	case hung != nil && m.defect == "check waits":
		<-hung
	case hung != nil:
		<-ctx.Done()
		return ctx.Err()
	case away:
		return sinks.Transient(sinks.ReasonUnreachable, errors.New("away"))
	case denied:
		return sinks.Transient(sinks.ReasonUnauthorized, errors.New("denied"))
	}
	return nil
}

func (m *memory) Deliver(ctx context.Context, batch []sinks.Record) error {
	m.mu.Lock()
	hung := m.hung
	m.mu.Unlock()
	if m.defect == "ignores its context" {
		ctx = context.WithoutCancel(ctx)
	}
	if hung != nil {
		select {
		case <-hung:
		case <-ctx.Done():
		}
	}
	if err := ctx.Err(); err != nil || len(batch) == 0 {
		if m.defect == "keeps records" && hung != nil {
			m.set(func() {
				m.stored = append(m.stored, Stored{DedupID: batch[0].DedupID, Key: batch[0].Key, Body: batch[0].Body})
			})
		}
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.defect == "calls everything permanent" && m.failing:
		return sinks.Permanent(sinks.ReasonRejected, errors.New("no"))
	case m.defect == "shows a credential" && m.denied:
		return sinks.Transient(sinks.ReasonUnauthorized, fmt.Errorf("%s was refused", m.secret))
	case m.defect == "logs a credential" && m.denied:
		m.logger.Debug("refused", "token", m.secret)
		return sinks.Transient(sinks.ReasonUnauthorized, errors.New("denied"))
	case m.defect == "logs a coded credential" && m.denied:
		m.logger.Warn("refused", "header", "Basic "+base64.StdEncoding.EncodeToString([]byte("user:"+m.secret)))
		return sinks.Transient(sinks.ReasonUnauthorized, errors.New("denied"))
	case m.defect == "swallows errors" && m.failing:
		return nil
	case m.away:
		return sinks.Transient(sinks.ReasonUnreachable, errors.New("away"))
	case m.denied:
		return sinks.Transient(sinks.ReasonUnauthorized, errors.New("denied"))
	case m.failing:
		return sinks.Transient(sinks.ReasonUnavailable, errors.New("failing"))
	}
	return m.store(batch)
}

func (m *memory) store(batch []sinks.Record) error {
	if m.defect == "reorders" {
		batch = slices.Clone(batch)
		slices.Reverse(batch)
	}
	if m.defect == "modifies the batch" {
		batch[0].Body[0] = ' '
	}
	errs := make([]error, len(batch))
	failed := map[string]bool{}
	for i := range batch {
		r := &batch[i]
		tooLarge := r.Size() > int(m.Batch.MaxBytes)
		switch {
		case tooLarge && m.defect == "tries a large record for ever":
			errs[i] = sinks.Transient(sinks.ReasonTooLarge, errors.New("too large"))
		case tooLarge && m.defect == "gives no reason for a large record":
			errs[i] = sinks.Permanent(sinks.ReasonRejected, errors.New("no"))
		case tooLarge && m.defect == "drops a large record":
			continue
		case tooLarge && m.defect == "cuts a large record":
			m.stored = append(m.stored, Stored{DedupID: r.DedupID, Key: r.Key, Headers: r.Headers, Body: slices.Clone(r.Body[:1<<10])})
			continue
		case m.large && m.defect == "fails behind a large record":
			m.large = false
			errs[i] = sinks.Transient(sinks.ReasonUnreachable, errors.New("the connection is gone"))
		case failed[r.Key] && m.defect != "goes on behind a failure":
			errs[i] = sinks.Transient(sinks.ReasonOther, errors.New("held"))
		case m.poisoned[r.ID] && m.defect == "drops the poisoned":
			continue
		case m.poisoned[r.ID]:
			errs[i] = sinks.Permanent(sinks.ReasonRejected, errors.New("poisoned"))
		case m.refused[r.ID]:
			errs[i] = sinks.Transient(sinks.ReasonUnavailable, errors.New("refused"))
		case m.defect == "loses one" && strings.HasSuffix(r.ID, "/7/MODIFIED"):
		default:
			stored := Stored{DedupID: r.DedupID, Key: r.Key, Headers: r.Headers, Body: slices.Clone(r.Body)}
			if m.defect == "another dedup id" {
				stored.DedupID = r.ID
			}
			if r.Attributes != nil && m.defect != "drops attributes" {
				stored.Attributes = maps.Clone(r.Attributes)
				stored.Attributes["datacontenttype"] = r.ContentType
			}
			m.stored = append(m.stored, stored)
		}
		if errs[i] != nil {
			failed[r.Key] = true
		}
		m.large = tooLarge
	}
	if len(failed) == 0 {
		return nil
	}
	return &sinks.BatchError{Errs: errs}
}

func (m *memory) set(change func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change()
}

func newMemory(defect string) *memory {
	return &memory{
		Common:   sinks.Common{Batch: sinks.Batch{MaxRecords: 50, MaxBytes: 1 << 20}, Concurrency: 4, Timeout: 1 << 30},
		defect:   defect,
		secret:   "hunter2-hunter2",
		poisoned: map[string]bool{}, refused: map[string]bool{},
	}
}

func harness(defect string) Harness {
	return Harness{
		Kind: sinks.Kind{Name: "memory", New: func() sinks.Config { return newMemory(defect) }},
		New: func(*testing.T) *Peer {
			m := newMemory(defect)
			peer := &Peer{
				Config:     func() sinks.Config { return m },
				Stored:     func() []Stored { m.mu.Lock(); defer m.mu.Unlock(); return slices.Clone(m.stored) },
				Fail:       func() { m.set(func() { m.failing = true }) },
				FailRecord: func(r *sinks.Record) { m.set(func() { m.refused[r.ID] = true }) },
				Poison:     func(r *sinks.Record) { m.set(func() { m.poisoned[r.ID] = true }) },
				Hang:       func() { m.set(func() { m.hung = make(chan struct{}) }) },
				Leave:      func() { m.set(func() { m.away = true }) },
				Deny:       func() { m.set(func() { m.denied = true }) },
				Mend: func() {
					m.set(func() {
						if m.hung != nil {
							close(m.hung)
						}
						m.hung, m.failing, m.away, m.denied, m.refused = nil, false, false, false, map[string]bool{}
					})
				},
				Secrets: []string{m.secret},
			}
			if defect == "hides what it cannot do" {
				peer.Hang = nil
			}
			return peer
		},
	}
}

const defectVariable = "KUBEFERRY_TEST_DEFECT"

// TestSuite shows that a sink without a defect passes. With the variable set it is the one with that defect.
func TestSuite(t *testing.T) { Run(t, harness(os.Getenv(defectVariable))) }

// TestSuiteFindsDefects runs this program again for each defect, because a failed subtest fails its parent.
func TestSuiteFindsDefects(t *testing.T) {
	for defect, want := range map[string]string{
		"open waits":                         "Open: away",
		"ignores its context":                "has not returned 2s after its context had ended",
		"calls everything permanent":         "want one that may pass",
		"shows a credential":                 "credential 0 shows",
		"swallows errors":                    "while the peer fails: got no error",
		"reorders":                           "first arrivals of key",
		"modifies the batch":                 "Deliver modified the batch",
		"goes on behind a failure":           "of the same key, failed in the same call",
		"drops the poisoned":                 "the poisoned record was acknowledged",
		"loses one":                          "and the peer does not have it",
		"another dedup id":                   "got dedup id",
		"drops attributes":                   "got attributes",
		"logs a credential":                  "credential 0 shows in an error or a log line",
		"logs a coded credential":            "credential 0 shows in an error or a log line",
		"tries a large record for ever":      "want none or a permanent too_large",
		"gives no reason for a large record": "want none or a permanent too_large",
		"drops a large record":               "was acknowledged, and the peer does not have it",
		"cuts a large record":                "the peer has a record that nobody sent",
		"fails behind a large record":        "neighbour of the large record: got error",
		"keeps records":                      "record that nobody sent",
		"close waits":                        "Close has not returned 2s after its context had ended",
		"warns of its defaults":              "the defaults give up a promise",
		"check sends":                        "Check sent 1 records",
		"check sees nothing":                 "Check of a peer that does not answer: got no error",
		"check waits":                        "Check has not returned 2s after its context had ended",
		"hides what it cannot do":            "Hang is missing, and Cannot gives no reason",
	} {
		t.Run(defect, func(t *testing.T) {
			t.Parallel()
			command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestSuite$", "-test.timeout=2m")
			command.Env = append(os.Environ(), defectVariable+"="+defect)
			out, err := command.CombinedOutput()
			if err == nil {
				t.Fatal("the suite passed")
			}
			if !strings.Contains(string(out), want) {
				t.Errorf("got output without %q:\n%s", want, out)
			}
		})
	}
}
