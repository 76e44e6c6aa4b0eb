package webhook

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

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
	creds, err := s.config.readSecrets(s.hidden)
	if err != nil {
		return false, err
	}
	// The body of the response has a bound of its own, which ends the request and not the call.
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	req, sent, err := s.request(own, records, creds)
	if err != nil {
		return true, err
	}
	defer sent.release()
	resp, err := s.client.Do(req)
	if err != nil {
		return false, s.noAnswer(ctx, err, creds)
	}
	defer resp.Body.Close()
	return s.answer(resp, readBody(ctx, resp, cancel), records, creds)
}

// request makes the request for records, and returns what it carries, which the caller has to release.
func (s *Sink) request(ctx context.Context, records []*sinks.Record, creds *secrets) (*http.Request, *content, error) {
	header, err := s.header(records, creds)
	if err != nil {
		return nil, nil, err
	}
	c := s.content(records)
	if len(creds.signing) > 0 {
		header.Set(headerSignature, sign(creds.signing, header.Get(headerID), header.Get(headerTimestamp), c))
	}
	if s.config.Compression == compressionGzip {
		c = compress(c)
	}
	if c.size() >= expectSize {
		header.Set("Expect", "100-continue")
	}
	req, err := http.NewRequestWithContext(ctx, s.config.Method, s.target.String(), c.reader())
	if err != nil {
		return nil, nil, sinks.Transient(sinks.ReasonOther, errors.New("the request cannot be made from url and method"))
	}
	req.Header, req.ContentLength = header, int64(c.size())
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(c.reader()), nil } // for a connection that turns out to be closed
	return req, c, nil
}

// header returns the header for records, but for what depends on the body.
func (s *Sink) header(records []*sinks.Record, creds *secrets) (http.Header, error) {
	first := records[0]
	header := http.Header{}
	if s.array(first) {
		header.Set("Content-Type", first.BatchContentType)
	} else {
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

// brackets are around the records of a JSON array, and between them.
var brackets = []byte("[,]")

// content returns what a request carries, before compression.
func (s *Sink) content(records []*sinks.Record) *content {
	if !s.array(records[0]) {
		return &content{parts: [][]byte{records[0].Body}}
	}
	parts := make([][]byte, 0, 2*len(records)+1)
	for i, r := range records {
		parts = append(parts, brackets[min(i, 1):][:1], r.Body)
	}
	return &content{parts: append(parts, brackets[2:])}
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
	ids := make([]byte, 0, 128*len(records))
	for _, r := range records { // with their lengths, so that no two lists look the same
		ids = append(strconv.AppendInt(ids, int64(len(r.DedupID)), 10), ':')
		ids = append(append(ids, r.DedupID...), ',')
	}
	digest := sha256.Sum256(ids)
	return "batch_" + hex.EncodeToString(digest[:16])
}

// sign returns one signature per secret over id.timestamp.body.
func sign(keys [][]byte, id, timestamp string, body *content) string {
	signatures := make([]string, len(keys))
	for i, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + timestamp + "."))
		_, _ = io.Copy(mac, body.reader())
		signatures[i] = "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil))
	}
	return strings.Join(signatures, " ")
}

func compress(c *content) *content {
	var buffer bytes.Buffer
	w, _ := gzip.NewWriterLevel(&buffer, gzip.BestSpeed) // fails for an unknown level only
	_, _ = io.Copy(w, c.reader())                        // a Buffer takes everything
	_ = w.Close()
	return &content{parts: [][]byte{buffer.Bytes()}}
}
