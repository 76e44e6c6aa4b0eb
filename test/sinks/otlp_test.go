package sinks_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	logs "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/pipeline"
	"github.com/kubeferry/kubeferry/pipeline/shape"
	"github.com/kubeferry/kubeferry/sinks/webhook"
	"github.com/kubeferry/kubeferry/test/internal/freeport"
	"github.com/kubeferry/kubeferry/test/internal/programs"
)

// TestExtendedOTLPCollector sends changes and a gap through an OpenTelemetry Collector, in both encodings and several in a request. What the
// Collector decoded and sends on is what was sent.
func TestExtendedOTLPCollector(t *testing.T) {
	var mu sync.Mutex
	received := map[string]string{} // bodies by id
	behind := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var request logs.ExportLogsServiceRequest
		if err := protojson.Unmarshal(body, &request); err != nil {
			t.Errorf("%v: %s", err, body)
		}
		mu.Lock()
		defer mu.Unlock()
		for _, of := range request.GetResourceLogs() {
			for _, log := range of.GetScopeLogs()[0].GetLogRecords() {
				attributes := log.GetAttributes()
				id := attributes[slices.IndexFunc(attributes, func(kv *common.KeyValue) bool { return kv.GetKey() == "cloudevents.event_id" })]
				received[id.GetValue().GetStringValue()] = fmt.Sprint(of.GetResource(), log)
			}
		}
	}))
	defer behind.Close()
	url := startCollector(t, behind.URL)

	for _, encoding := range []shape.Encoding{shape.EncodingJSON, shape.EncodingProtobuf} {
		t.Run(string(encoding), func(t *testing.T) {
			mu.Lock()
			clear(received)
			mu.Unlock()
			config := webhook.NewConfig()
			config.URL, config.Batch.MaxRecords, config.Batch.Linger = url+"/v1/logs", 10, 50*time.Millisecond
			options := shape.Options{Format: shape.FormatOTLP, Encoding: encoding}
			p := runPipeline(t, config, pipeline.Options{Options: options, DeadLetter: refuseLetters{}})
			options.Name, options.Cluster = "events", "test"
			encoder := shape.NewEncoder(options)
			want := map[string]string{}
			expect := func(e delta.Entry) {
				record, _, err := encoder.Encode(nil, &e)
				if err != nil {
					t.Fatal(err)
				}
				var request logs.ExportLogsServiceRequest
				if err := protojson.Unmarshal(record.Body, &request); err != nil {
					t.Fatal(err)
				}
				of := request.GetResourceLogs()[0]
				want[record.ID] = fmt.Sprint(of.GetResource(), of.GetScopeLogs()[0].GetLogRecords()[0])
			}
			for _, c := range eventCases(t) {
				c.delta.Observed = observed
				expect(delta.Entry{Delta: c.delta})
				if err := handOver(t.Context(), p, c.delta); err != nil {
					t.Fatal(err)
				}
			}
			gap := &delta.Gap{Watch: "8d3f", Resource: eventCases(t)[0].delta.Resource, From: "1", To: "9", Reason: "Expired", Observed: observed}
			expect(delta.Entry{Gap: gap})
			if err := handOverGap(t.Context(), p, gap); err != nil {
				t.Fatal(err)
			}
			if left := p.Drain(within(t, 30*time.Second)); left > 0 {
				t.Fatalf("%d records were not taken", left)
			}
			mu.Lock()
			defer mu.Unlock()
			for id := range want {
				if received[id] != want[id] {
					t.Errorf("%s: got\n%s\nwant\n%s", id, received[id], want[id])
				}
			}
			if len(received) != len(want) {
				t.Errorf("got %d log records, want %d", len(received), len(want))
			}
		})
	}
}

// startCollector runs a Collector that sends what it receives on to a URL, and returns its own.
func startCollector(t *testing.T, to string) string {
	t.Helper()
	program, err := programs.Collector().Path()
	if err != nil {
		t.Fatal(err)
	}
	port, err := freeport.Pick()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "collector.yaml")
	config := fmt.Sprintf(`
receivers: {otlp: {protocols: {http: {endpoint: "127.0.0.1:%d"}}}}
exporters: {otlp_http: {endpoint: %q, encoding: json, compression: none, sending_queue: {enabled: false}}}
service:
  telemetry: {metrics: {level: none}}
  pipelines: {logs: {receivers: [otlp], exporters: [otlp_http]}}
`, port, to)
	if err := os.WriteFile(path, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	var output bytes.Buffer
	cmd := exec.Command(program, "--config", "file:"+path)
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("the Collector ended with %v:\n%s", err, &output)
		}
	})
	url := fmt.Sprintf("http://127.0.0.1:%d", port)
	for ctx := within(t, 30*time.Second); ; time.Sleep(10 * time.Millisecond) {
		resp, err := http.Get(url)
		if err == nil {
			resp.Body.Close()
			return url
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}
