package webhook

import (
	"io"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
)

// A transport that reads a body beyond the call gets an error, never what the memory holds by then.
func TestBodyIsReadBeyondItsRequest(t *testing.T) {
	s := &Sink{config: &Config{}}
	b := s.body([]*sinks.Record{{Body: []byte("first")}})
	early, late := &bodyReader{body: b}, &bodyReader{body: b}
	part := make([]byte, 2)
	if n, err := late.Read(part); n != 2 || err != nil || string(part) != "fi" {
		t.Fatalf("got %q %v", part[:n], err)
	}
	if all, err := io.ReadAll(early); string(all) != "first" || err != nil {
		t.Errorf("got %q %v", all, err)
	}
	b.end()
	copy(b.content, "other")
	if rest, err := io.ReadAll(late); len(rest) > 0 || err == nil {
		t.Errorf("got %q, no error", rest)
	}
}
