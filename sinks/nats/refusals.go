package nats

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

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
	last     error         // of any kind
	changed  chan struct{} // closed at the next report
}

func newRefusals() *refusals {
	return &refusals{subjects: map[string]int{}, changed: make(chan struct{})}
}

// report takes an error from nats.go's callback, and returns whether the connection can go on. It cannot if the server refused the subscription by
// which acknowledgements come, because nats.go subscribes only once. It also cannot if too many subjects were refused to keep more. The caller
// then closes the connection, and the calls under way fail.
func (r *refusals) report(err error) (useful bool) {
	subject := ""
	if errors.Is(err, nats.ErrPermissionViolation) {
		if subject = violated(err); subject == "" {
			return false
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.seq++
	r.last = err
	close(r.changed)
	r.changed = make(chan struct{})
	if subject != "" {
		r.subjects[subject] = r.seq
	}
	return len(r.subjects) < maxRefused
}

// state returns the number of the last report, a channel that is closed at the next one, and the error of the last.
func (r *refusals) state() (seq int, changed <-chan struct{}, last error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seq, r.changed, r.last
}

// since returns an error if subject was refused after the report with the number seq.
func (r *refusals) since(seq int, subject string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.subjects[subject] > seq {
		return errRefused
	}
	return nil
}

// violated returns the subject to which publishing was refused; empty if it was something else, or cannot be read. The server writes:
// Permissions Violation for Publish to "subject" (client.go, pubPermissionViolation). Servers may append to it.
func violated(err error) string {
	_, rest, _ := strings.Cut(err.Error(), `Publish to "`)
	quoted, _ := strconv.QuotedPrefix(`"` + rest)
	subject, _ := strconv.Unquote(quoted)
	return subject
}
