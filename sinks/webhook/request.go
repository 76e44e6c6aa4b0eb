package webhook

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/net/http/httpguts"

	"github.com/kubeferry/kubeferry/sinks"
)

// The headers of Standard Webhooks.
const (
	headerID        = "webhook-id"
	headerTimestamp = "webhook-timestamp"
	headerSignature = "webhook-signature"
)

// expectSize is the size from which a request has the header Expect: 100-continue and its body waits for the answer: a
// receiver that refuses it would close the connection while the body is written, and its answer would be lost. curl does
// the same.
const expectSize = 1 << 20

// post sends one request and returns its classified error, and whether fewer records in one request may be taken.
func (s *Sink) post(ctx context.Context, records []*sinks.Record) (halve bool, err error) {
	creds, err := s.credentials(ctx)
	if err != nil {
		return false, err
	}
	// The body of the response has a bound of its own, which ends the request and not the call.
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	req, body, err := s.request(own, records, creds)
	if err != nil {
		return true, err
	}
	defer body.end()
	resp, err := s.client.Do(req)
	if err != nil {
		return false, s.noAnswer(ctx, err, creds)
	}
	defer resp.Body.Close()
	limit := int64(maxRead)
	if s.success != nil || s.permanent != nil {
		limit = maxJudged
	}
	return s.answer(ctx, resp, readBody(ctx, resp, cancel, limit), records, creds)
}

// request makes the request for records. Its body has to be ended.
func (s *Sink) request(ctx context.Context, records []*sinks.Record, creds *secrets) (*http.Request, *body, error) {
	header, err := s.header(records, creds)
	if err != nil {
		return nil, nil, err
	}
	body := s.body(records)
	if len(creds.signing) > 0 {
		header.Set(headerSignature, sign(creds.signing, header.Get(headerID), header.Get(headerTimestamp), body.content))
	}
	if s.config.Compression == compressionGzip {
		body.content = compress(body.content)
	}
	if len(body.content) >= expectSize {
		header.Set("Expect", "100-continue")
	}
	req, err := http.NewRequestWithContext(ctx, s.config.Method, s.target.String(), nil)
	if err != nil {
		return nil, nil, sinks.Transient(sinks.ReasonOther, errors.New("the request cannot be made from url and method"))
	}
	req.Header, req.ContentLength = header, int64(len(body.content))
	req.GetBody = func() (io.ReadCloser, error) { return &bodyReader{body: body}, nil }
	req.Body, err = req.GetBody()
	return req, body, err
}

// header returns the header for records, but for what depends on the body.
func (s *Sink) header(records []*sinks.Record, creds *secrets) (http.Header, error) {
	first := records[0]
	header := http.Header{}
	switch {
	case s.framed(first) && s.config.framing() == framingNDJSON && !first.OTLP && isJSON(first.BatchContentType):
		header.Set("Content-Type", contentTypeNDJSON)
	case s.framed(first):
		header.Set("Content-Type", first.BatchContentType)
	default:
		for name, value := range first.Headers {
			if !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) {
				return nil, sinks.Permanent(sinks.ReasonEncode, fmt.Errorf("header %q of the record cannot be sent over HTTP", name))
			}
			header.Set(name, value)
		}
		first.AttributeHeaders(header.Set)
		header.Set("Content-Type", first.ContentType)
	}
	id := idOf(records)
	if !httpguts.ValidHeaderFieldValue(id) {
		return nil, sinks.Permanent(sinks.ReasonEncode, fmt.Errorf("id %q cannot be sent over HTTP", id))
	}
	s.addHeaders(header, creds)
	header.Set(headerID, id)
	header.Set(headerTimestamp, strconv.FormatInt(s.now().Unix(), 10))
	if s.config.Compression == compressionGzip {
		header.Set("Content-Encoding", "gzip")
	}
	return header, nil
}

// body returns what a request carries, before compression: a copy of the records' bodies.
func (s *Sink) body(records []*sinks.Record) *body {
	size := 1
	for _, r := range records {
		size += 1 + len(r.Body)
	}
	b := newBody(size)
	switch {
	case !s.framed(records[0]):
		b.content = append(b.content, records[0].Content()...)
		return b
	case records[0].OTLP:
		b.content = sinks.JoinOTLP(b.content, records)
		if records[0].ContentType == sinks.ContentTypeProtobuf {
			b.content, _ = sinks.OTLPProtobuf(b.content) // which a format made
		}
		return b
	case s.config.framing() == framingNDJSON:
		for _, r := range records {
			b.content = appendLines(b.content, r.Content())
		}
		return b
	}
	for i, r := range records {
		b.content = append(b.content, "[,"[min(i, 1)])
		b.content = append(b.content, r.Body...)
	}
	b.content = append(b.content, ']')
	return b
}

// contentTypeNDJSON has no registration; Elasticsearch, OpenSearch and others take it.
const contentTypeNDJSON = "application/x-ndjson"

// isJSON reports whether a content type is one of JSON arrays, and not one of lines that a pipeline names.
func isJSON(contentType string) bool {
	return contentType == "application/json" || contentType == "application/cloudevents-batch+json"
}

// appendLines appends a body and a line break, of a list each item and a line break: an action and its document, say.
func appendLines(b []byte, body []byte) []byte {
	var items []json.RawMessage
	if !bytes.HasPrefix(body, []byte("[")) || json.Unmarshal(body, &items) != nil {
		items = []json.RawMessage{body}
	}
	for _, item := range items {
		b = append(append(b, item...), '\n')
	}
	return b
}

// addHeaders sets what every request has.
func (s *Sink) addHeaders(header http.Header, creds *secrets) {
	header.Set("User-Agent", s.env.UserAgent)
	for name, value := range s.config.Headers {
		header.Set(name, value)
	}
	if creds.authorization != "" {
		header.Set("Authorization", creds.authorization)
	}
}

// idOf returns what receivers deduplicate by: for several records a digest of their ids, so that the same batch has
// the same id each time.
func idOf(records []*sinks.Record) string {
	if len(records) == 1 {
		return records[0].DedupID
	}
	digest, id := sha256.New(), make([]byte, 0, 256)
	for _, r := range records { // with their lengths, so that no two lists look the same
		id = append(strconv.AppendInt(id[:0], int64(len(r.DedupID)), 10), ':')
		id = append(append(id, r.DedupID...), ',')
		digest.Write(id)
	}
	return "batch_" + hex.EncodeToString(digest.Sum(nil)[:16])
}

// sign returns one signature per secret over id.timestamp.body.
func sign(keys [][]byte, id, timestamp string, body []byte) string {
	signatures := make([]string, len(keys))
	for i, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(body)
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return strings.Join(signatures, " ")
}

func compress(content []byte) []byte {
	var buffer bytes.Buffer
	w, _ := gzip.NewWriterLevel(&buffer, gzip.BestSpeed) // fails for an unknown level only
	_, _ = w.Write(content)                              // a Buffer takes everything
	_ = w.Close()
	return buffer.Bytes()
}

// body is what one request carries. The transport may read it beyond the call, and gets an error then: the memory is used again.
type body struct {
	mu      sync.RWMutex
	content []byte
	over    bool
}

// pooled is the capacity up to which the memory of a body is kept for the next one.
const pooled = 1 << 20

var contents = sync.Pool{New: func() any { return new([]byte) }}

// newBody returns a body with room for size bytes.
func newBody(size int) *body {
	content := *contents.Get().(*[]byte)
	if cap(content) < size {
		content = make([]byte, 0, size)
	}
	return &body{content: content[:0]}
}

// end is called once the request is over, whether it was answered or not.
func (b *body) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
	if cap(b.content) <= pooled {
		contents.Put(&b.content)
	}
}

// bodyReader reads a body from its beginning; each attempt of the transport has its own.
type bodyReader struct {
	*body
	at int
}

func (r *bodyReader) Read(p []byte) (int, error) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	switch {
	case r.over:
		return 0, errors.New("the request is over")
	case r.at == len(r.content):
		return 0, io.EOF
	}
	n := copy(p, r.content[r.at:])
	r.at += n
	return n, nil
}

func (r *bodyReader) Close() error { return nil }
