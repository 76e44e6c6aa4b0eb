package nats

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/sinks"
)

const (
	headerContentType = "Content-Type"
	// headerDataContentType is what Content-Type is to HTTP: here it is an attribute like the others.
	headerDataContentType = sinks.AttributePrefix + "datacontenttype"
	headerMsgID           = nats.MsgIdHdr // JetStream recognizes a record that is sent again by it
)

// call is one Deliver call. nats.go may be stuck in a write while the call has to return; the goroutine that is in
// it then must not touch the batch any more. So messages are copied out of the batch under a lock, and stop ends it.
type call struct {
	subject sinks.Template
	n       int

	mu    sync.Mutex // guards what follows
	batch []sinks.Record
	buf   []byte
}

// stop makes the call forget its batch. Nothing reads it once it returned.
func (c *call) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.batch = nil
}

// message returns the message of record i. Its data is valid until the next call. An error is the record's own,
// unless the call was stopped because ctx has ended.
func (c *call) message(ctx context.Context, i int, maxPayload int64) (*nats.Msg, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.batch == nil {
		return nil, ctx.Err()
	}
	r := &c.batch[i]
	subject := c.subject.Expand(&r.Fields, tokenByte)
	if len(subject) > maxSubject {
		return nil, sinks.Permanent(sinks.ReasonEncode,
			fmt.Errorf("nats: subject %.100q… has %d bytes, more than %d", subject, len(subject), maxSubject))
	}
	header := headerOf(r)
	if size := headerSize(header); int64(size+len(r.Body)) > maxPayload {
		return nil, sinks.Permanent(sinks.ReasonTooLarge,
			fmt.Errorf("nats: subject %q: a record of %d bytes (headers %d, value %d) is larger than the server's max_payload of %d",
				subject, size+len(r.Body), size, len(r.Body), maxPayload))
	}
	c.buf = append(c.buf[:0], r.Body...)
	return &nats.Msg{Subject: subject, Header: header, Data: c.buf}, nil
}

func headerOf(r *sinks.Record) nats.Header {
	n := len(r.Headers) + len(r.Attributes) + 3
	header := make(nats.Header, n)
	values := make([]string, 0, n) // one allocation instead of n
	set := func(name, value string) {
		values = append(values, value)
		header[name] = values[len(values)-1 : len(values) : len(values)]
	}
	for name, value := range r.Headers {
		if name != "content-type" || r.ContentType == "" { // names of headers are case-sensitive here
			set(name, value)
		}
	}
	if r.ContentType != "" {
		set(headerContentType, r.ContentType)
	}
	r.AttributeHeaders(set)
	if r.Attributes != nil && r.ContentType != "" {
		set(headerDataContentType, r.ContentType)
	}
	set(headerMsgID, r.DedupID)
	return header
}

// headerSize returns the bytes of a header section (ADR-4): a version line, "name: value" lines, an empty line.
func headerSize(header nats.Header) int {
	size := len("NATS/1.0\r\n") + len("\r\n")
	for name, values := range header {
		for _, value := range values {
			size += len(name) + len(": ") + len(value) + len("\r\n")
		}
	}
	return size
}

// codeHeaderTooLarge is JSStreamHeaderExceedsMaximumErr of the server's errors.json; nats.go has no name for it.
const codeHeaderTooLarge jetstream.ErrorCode = 10097

// classify returns err as the sink reports it; subject is the record's.
func classify(subject string, err error) error {
	var classified *sinks.Error
	if err == nil || errors.As(err, &classified) {
		return err
	}
	api := apiError(err)
	switch {
	case errors.Is(err, nats.ErrMaxPayload),
		api != nil && (api.ErrorCode == jetstream.JSErrCodeStreamMessageExceedsMaximum || api.ErrorCode == codeHeaderTooLarge):
		return sinks.Permanent(sinks.ReasonTooLarge, fmt.Errorf("subject %q: %w", subject, err))
	case errors.Is(err, nats.ErrBadHeaderMsg), errors.Is(err, nats.ErrBadSubject):
		return sinks.Permanent(sinks.ReasonEncode, fmt.Errorf("subject %q: %w", subject, err))
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return sinks.Transient(sinks.ReasonNotFound, fmt.Errorf("no stream takes subject %q: %w", subject, err))
	default:
		return sinks.Transient(reasonOf(err), fmt.Errorf("subject %q: %w", subject, err))
	}
}

// transient classifies an error that would fail any record.
func transient(err error) error { return sinks.Transient(reasonOf(err), err) }

func reasonOf(err error) sinks.Reason {
	var classified *sinks.Error
	var path *os.PathError
	switch {
	case errors.As(err, &classified):
		return classified.Reason
	case apiError(err) != nil:
		return reasonOfAPI(apiError(err))
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return sinks.Classify(err).Reason
	case is(err, nats.ErrAuthorization, nats.ErrAuthExpired, nats.ErrAuthRevoked, nats.ErrAccountAuthExpired, nats.ErrPermissionViolation),
		errors.As(err, &path): // a credentials file
		return sinks.ReasonUnauthorized
	case is(err, jetstream.ErrStreamNotFound):
		return sinks.ReasonNotFound
	case is(err, jetstream.ErrAsyncPublishTimeout, nats.ErrTimeout):
		return sinks.ReasonTimeout
	case is(err, jetstream.ErrTooManyStalledMsgs, nats.ErrMaxConnectionsExceeded, nats.ErrMaxAccountConnectionsExceeded):
		return sinks.ReasonUnavailable
	case is(err, nats.ErrNoServers, nats.ErrConnectionClosed, nats.ErrDisconnected, nats.ErrStaleConnection,
		nats.ErrConnectionDraining, nats.ErrInvalidConnection, nats.ErrTLS, nats.ErrSecureConnWanted, nats.ErrNoInfoReceived,
		io.EOF, io.ErrUnexpectedEOF, net.ErrClosed):
		return sinks.ReasonUnreachable
	default:
		return sinks.Classify(err).Reason
	}
}

// tlsTrouble reports whether a connection failed over its certificate.
func tlsTrouble(err error) bool {
	var certificate *tls.CertificateVerificationError
	return errors.As(err, &certificate)
}

// apiError returns the answer of JetStream in err, nil if there is none.
func apiError(err error) *jetstream.APIError {
	var answer jetstream.JetStreamError
	if errors.As(err, &answer) {
		return answer.APIError()
	}
	return nil
}

// reasonOfAPI goes by the HTTP-like code: the exact ones are many, and new versions add to them (errors.json of the
// server). A full stream is a 503 (JSStreamStoreFailed).
func reasonOfAPI(api *jetstream.APIError) sinks.Reason {
	switch {
	case api.Code == 401 || api.Code == 403:
		return sinks.ReasonUnauthorized
	case api.Code == 404:
		return sinks.ReasonNotFound
	case api.Code == 408:
		return sinks.ReasonTimeout
	case api.Code == 429:
		return sinks.ReasonThrottled
	case api.Code >= 500:
		return sinks.ReasonUnavailable
	default:
		return sinks.ReasonRejected
	}
}

func is(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

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

var _ sinks.Describer = (*Config)(nil)

// Describe implements [sinks.Describer]. What the server takes at most is not known here.
func (c *Config) Describe(r *sinks.Record) sinks.Destination {
	template, err := sinks.ParseTemplate(c.Subject)
	if err != nil {
		return sinks.Destination{Place: "subject " + c.Subject, Err: err}
	}
	one := &call{subject: template, batch: []sinks.Record{*r}}
	message, err := one.message(context.Background(), 0, math.MaxInt64)
	if err != nil {
		return sinks.Destination{Place: "no subject", Err: err}
	}
	headers := map[string]string{}
	for name := range message.Header {
		headers[name] = message.Header.Get(name)
	}
	return sinks.Destination{Place: "subject " + message.Subject, Headers: sinks.SortedHeaders(headers), Body: message.Data}
}
