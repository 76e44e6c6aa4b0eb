package nats

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// maxRefused bounds what is kept of a connection that is denied one subject after the other.
const maxRefused = 4096

// errRefused stands for the server's line about one subject.
var errRefused = fmt.Errorf("no right to publish to it: %w", nats.ErrPermissionViolation)

// refusals are the permission violations that a server reported over one connection. A server reports them on the side,
// by a line that names the subject; nats.go hands them to a callback.
type refusals struct {
	mu       sync.Mutex // guards what follows
	seq      int        // of the last report
	subjects map[string]int
	unknown  int           // seq of the last refusal of an unknown subject
	inbox    error         // the subscription that acknowledgements come by was refused
	inboxAt  time.Time     // when
	last     error         // of any kind
	changed  chan struct{} // closed at the next report
}

func newRefusals() *refusals {
	return &refusals{subjects: map[string]int{}, changed: make(chan struct{})}
}

// report takes an error from nats.go's callback.
func (r *refusals) report(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	r.last = err
	close(r.changed)
	r.changed = make(chan struct{})
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return
	}
	switch subject, publish := violated(err); {
	case !publish:
		r.inbox, r.inboxAt = fmt.Errorf("no acknowledgement can be received: %w", err), time.Now()
	case subject == "" || len(r.subjects) >= maxRefused:
		clear(r.subjects)
		r.unknown = r.seq
	default:
		r.subjects[subject] = r.seq
	}
}

// state returns the number of the last report, a channel that is closed at the next one, and the error of the last.
func (r *refusals) state() (seq int, changed <-chan struct{}, last error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seq, r.changed, r.last
}

// since returns an error if subject was refused after the report with the number seq, or if that is not known.
func (r *refusals) since(seq int, subject string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.subjects[subject] > seq || r.unknown > seq {
		return errRefused
	}
	return r.inbox
}

// subscribesAnew is how long after its subscription was refused a connection is given up: nats.go subscribes once, and the right may be there
// by now.
const subscribesAnew = 5 * time.Second

// stale reports whether another connection may receive what this one cannot.
func (r *refusals) stale() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.inbox != nil && time.Since(r.inboxAt) > subscribesAnew
}

// violated returns the subject of a violation, and whether publishing to it was refused (else subscribing). The
// server writes: Permissions Violation for Publish to "subject" (client.go, pubPermissionViolation). Servers may
// append to it.
func violated(err error) (subject string, publish bool) {
	_, rest, publish := strings.Cut(err.Error(), `Publish to "`)
	if !publish {
		return "", false
	}
	quoted, err := strconv.QuotedPrefix(`"` + rest)
	if err != nil {
		return "", true
	}
	subject, _ = strconv.Unquote(quoted) // QuotedPrefix returned it quoted
	return subject, true
}
