package sinks_test

import (
	"os"
	"testing"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

func put(t *testing.T, path string, content []byte) string {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestTLSFaults(t *testing.T) {
	common := sinks.Common{
		Batch: sinks.Batch{MaxRecords: 1, MaxBytes: 1024}, Concurrency: 1, Timeout: time.Second,
		TLS: &sinks.TLS{CertFile: "f", InsecureSkipVerify: true},
	}
	faults := common.Validate()
	if len(faults) != 2 || faults[0].Path != "tls.certFile" || faults[0].Warning ||
		faults[1].Path != "tls.insecureSkipVerify" || !faults[1].Warning {
		t.Errorf("got %+v", faults)
	}
	if got := len((&sinks.Common{Timeout: -1, Batch: sinks.Batch{Linger: -1}}).Validate()); got != 5 {
		t.Errorf("nothing valid: got %d faults, want 5", got)
	}
}
