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
	"net/http"
	"strconv"
	"strings"

	"github.com/kubeferry/kubeferry/sinks"
)

// The headers of Standard Webhooks.
const (
	headerID        = "webhook-id"
	headerTimestamp = "webhook-timestamp"
	headerSignature = "webhook-signature"
)

// askFirst is the size from which a request asks (Expect: 100-continue) before it sends its body: a receiver that
// refuses it would close the connection while the body is written, and its answer would be lost. curl does the same.
const askFirst = 1 << 20

// post sends one request and returns its classified error, and whether fewer records in one request may fare better.
func (s *Sink) post(ctx context.Context, records []*sinks.Record) (divide bool, err error) {
	creds, err := s.creds.read()
	if err != nil {
		return false, sinks.Transient(sinks.ReasonUnauthorized, err)
	}
	req, err := s.request(ctx, records, creds)
	if err != nil {
		return true, err
	}
	resp, err := s.client.Do(req)
	if err != nil {
		return false, s.noAnswer(ctx, err, creds)
	}
	defer resp.Body.Close()
	return s.answer(resp, records, creds)
}

// request makes the request for records; its body is a copy, which the transport may read beyond the call.
func (s *Sink) request(ctx context.Context, records []*sinks.Record, creds *secrets) (*http.Request, error) {
	first := records[0]
	var body []byte
	header := http.Header{}
	if s.array(first) {
		body = arrayOf(records)
		header.Set("Content-Type", first.BatchContentType)
	} else {
		body = bytes.Clone(first.Body)
		for name, value := range first.Headers {
			if !validName(name) || !validValue(value) {
				return nil, sinks.Permanent(sinks.ReasonEncode, fmt.Errorf("header %q of the record cannot be sent over HTTP", name))
			}
			header.Set(name, value)
		}
		first.AttributeHeaders(header.Set)
		header.Set("Content-Type", first.ContentType)
	}
	id := idOf(records)
	if !validValue(id) {
		return nil, sinks.Permanent(sinks.ReasonEncode, fmt.Errorf("id %q cannot be sent over HTTP", id))
	}
	s.addHeaders(header, creds)
	timestamp := strconv.FormatInt(s.now().Unix(), 10)
	header.Set(headerID, id)
	header.Set(headerTimestamp, timestamp)
	if len(creds.signing) > 0 {
		header.Set(headerSignature, sign(creds.signing, id, timestamp, body))
	}
	if s.config.Compression == compressionGzip {
		body = compress(body)
		header.Set("Content-Encoding", "gzip")
	}
	if len(body) >= askFirst {
		header.Set("Expect", "100-continue")
	}
	req, err := http.NewRequestWithContext(ctx, s.config.Method, s.target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, sinks.Transient(sinks.ReasonOther, errors.New("the request cannot be made from url and method"))
	}
	req.Header = header
	return req, nil
}

// addHeaders sets what every request has, whatever it carries.
func (s *Sink) addHeaders(header http.Header, creds *secrets) {
	header.Set("User-Agent", s.env.UserAgent)
	for name, value := range s.config.Headers {
		header.Set(name, value)
	}
	if creds.authorization != "" {
		header.Set("Authorization", creds.authorization)
	}
}

func arrayOf(records []*sinks.Record) []byte {
	size := 1
	for _, r := range records {
		size += len(r.Body) + 1
	}
	body := make([]byte, 0, size)
	for i, r := range records {
		body = append(body, "[,"[min(i, 1)])
		body = append(body, r.Body...)
	}
	return append(body, ']')
}

// idOf returns what receivers deduplicate by: for several records a digest of their ids, so that the same batch has
// the same id each time.
func idOf(records []*sinks.Record) string {
	if len(records) == 1 {
		return records[0].DedupID
	}
	size := 0
	for _, r := range records {
		size += len(r.DedupID) + 8
	}
	ids := make([]byte, 0, size)
	for _, r := range records { // with their lengths, so that no two lists look the same
		ids = append(strconv.AppendInt(ids, int64(len(r.DedupID)), 10), ':')
		ids = append(append(ids, r.DedupID...), ',')
	}
	digest := sha256.Sum256(ids)
	return "batch_" + hex.EncodeToString(digest[:16])
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

func compress(body []byte) []byte {
	var b bytes.Buffer
	w, _ := gzip.NewWriterLevel(&b, gzip.BestSpeed) // fails for an unknown level only
	_, _ = w.Write(body)                            // a Buffer takes everything
	_ = w.Close()
	return b.Bytes()
}
