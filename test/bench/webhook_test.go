package bench_test

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
	"github.com/kubeferry/kubeferry/sinks/webhook"
)

// TestWebhook compares the sink with net/http: arrays of records, over HTTP/1.1 and HTTP/2, with and without signatures.
// The receiver is in this process, so that its work stands on both sides.
func TestWebhook(t *testing.T) {
	ca := sinktest.NewAuthority(t)
	dir := t.TempDir()
	key := []byte("secret secret secret secret")
	caFile, secretFile := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "secret")
	for path, content := range map[string]string{caFile: string(ca.PEM()), secretFile: base64.StdEncoding.EncodeToString(key)} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name         string
		secure, sign bool
	}{
		{"HTTP 1.1", false, false},
		{"HTTP 1.1 signed", false, true},
		{"HTTP 2", true, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			counts := &receiver{}
			server := httptest.NewUnstartedServer(counts)
			transport := &http.Transport{MaxIdleConnsPerHost: workers, MaxConnsPerHost: workers, DisableCompression: true, ForceAttemptHTTP2: true}
			config := webhook.NewConfig()
			config.Batch.MaxRecords, config.Concurrency = batchSize, workers
			var signWith []byte
			if test.sign {
				signWith = key
				config.Signature = &webhook.Signature{SecretFile: secretFile}
			}
			if test.secure {
				server.EnableHTTP2, server.TLS = true, ca.ServerConfig("127.0.0.1")
				server.StartTLS()
				transport.TLSClientConfig = &tls.Config{RootCAs: ca.Pool(), MinVersion: tls.VersionTLS12}
				config.TLS = &sinks.TLS{CAFile: caFile}
			} else {
				server.Start()
			}
			defer server.Close()
			defer transport.CloseIdleConnections()
			config.URL = server.URL + "/sink"
			client := &http.Client{Transport: transport}
			sink := openSink(t, config)
			want, share := compare(t,
				func(ctx context.Context, batch []sinks.Record) error {
					return post(ctx, client, server.URL+"/direct", signWith, batch)
				},
				func(ctx context.Context, batch []sinks.Record) error {
					for i := range batch {
						batch[i].BatchContentType = arrayType // or each would be a request of its own
					}
					return sink.Deliver(ctx, batch)
				})
			fast(t, share)
			if direct, through := counts.direct.Load(), counts.sink.Load(); direct != int64(want) || through != int64(want) {
				t.Errorf("got %d records directly and %d through the sink, want %d each", direct, through, want)
			}
		})
	}
}

const arrayType = "application/cloudevents-batch+json"

// post is what a program does that uses net/http itself.
func post(ctx context.Context, client *http.Client, url string, key []byte, batch []sinks.Record) error {
	var body bytes.Buffer
	body.Grow(len(batch) * (bodySize + 1))
	body.WriteByte('[')
	for i := range batch {
		if i > 0 {
			body.WriteByte(',')
		}
		body.Write(batch[i].Body)
	}
	body.WriteByte(']')
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, &body)
	if err != nil {
		return err
	}
	req.Header.Set("Content-Type", arrayType)
	if key != nil {
		mac := hmac.New(sha256.New, key)
		fmt.Fprintf(mac, "%s.%d.", batch[0].DedupID, time.Now().Unix())
		mac.Write(body.Bytes())
		req.Header.Set("webhook-signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	resp, err := client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("got %s", resp.Status)
	}
	return nil
}

// receiver counts the records of each side.
type receiver struct{ direct, sink atomic.Int64 }

func (r *receiver) ServeHTTP(_ http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(req.Body)
	if err != nil {
		return
	}
	count := &r.direct
	if req.URL.Path == "/sink" {
		count = &r.sink
	}
	count.Add(int64(bytes.Count(body, []byte(`"specversion"`))))
}
