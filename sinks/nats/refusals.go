package nats

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
)

// maxRefused bounds what is remembered of a connection that is denied one subject after the other.
const maxRefused = 4096

// errRefused stands for the server's line about one subject.
var errRefused = fmt.Errorf("no right to publish to it: %w", nats.ErrPermissionViolation)

// refusals are the permission violations that a server reported over one connection. It reports them on the side, by
// a line that names the subject; nats.go hands them to a callback.
type refusals struct {
	mu       sync.Mutex // guards what follows
	seq      int
	forgot   int            // seq when it was last unknown which subjects were refused
	subjects map[string]int // subject: seq of its last refusal
	inbox    error          // the subscription that acknowledgements come by was refused
	last     error          // of any kind
	changed  chan struct{}  // closed at the next report
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
	if errors.Is(err, nats.ErrPermissionViolation) {
		switch subject, publish := violated(err); {
		case !publish:
			r.inbox = err
		case subject == "" || len(r.subjects) >= maxRefused:
			clear(r.subjects)
			r.forgot = r.seq
		default:
			r.subjects[subject] = r.seq
		}
	}
	close(r.changed)
	r.changed = make(chan struct{})
}

// mark returns a point in time for since.
func (r *refusals) mark() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seq
}

// since reports whether subject was refused after mark. When in doubt it was.
func (r *refusals) since(mark int, subject string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.subjects[subject] > mark || r.forgot > mark
}

// state returns a channel that is closed at the next report, the last error reported, and the one that keeps
// acknowledgements away.
func (r *refusals) state() (changed <-chan struct{}, last, inbox error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.changed, r.last, r.inbox
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
	subject, _ = strconv.Unquote(quoted) // it is quoted: QuotedPrefix says so
	return subject, true
}
