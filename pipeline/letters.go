package pipeline

import (
	"context"
	"encoding/json"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// SinkLetters writes dead letters to a sink, one JSON object each that holds the whole record.
type SinkLetters struct {
	Sink    sinks.Sink
	Timeout time.Duration
}

// Write returns once the sink has acknowledged the letter.
func (s SinkLetters) Write(ctx context.Context, letter Letter) error {
	body, err := letter.encode()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	return s.Sink.Deliver(ctx, []sinks.Record{{
		ID: letter.Record.ID, DedupID: "dead/" + letter.Record.DedupID, Key: letter.Record.Key,
		ContentType: "application/json", BatchContentType: "application/json",
		Fields: letter.Record.Fields, Body: body,
	}})
}

func (l *Letter) encode() ([]byte, error) {
	type record struct {
		ID          string            `json:"id"`
		Key         string            `json:"key"`
		ContentType string            `json:"contentType"`
		Headers     map[string]string `json:"headers,omitempty"`
		Body        json.RawMessage   `json:"body,omitempty"`
	}
	message := ""
	if l.Err != nil {
		message = l.Err.Error()
	}
	return json.Marshal(struct {
		Pipeline     string    `json:"pipeline"`
		Sink         string    `json:"sink"`
		Reason       string    `json:"reason"`
		Error        string    `json:"error"`
		Attempts     int       `json:"attempts"`
		FirstFailure time.Time `json:"firstFailure"`
		LastFailure  time.Time `json:"lastFailure"`
		Record       record    `json:"record"`
	}{
		l.Pipeline, l.Sink, l.Reason, message, l.Attempts, l.First, l.Last,
		record{l.Record.ID, l.Record.Key, l.Record.ContentType, l.Record.Headers, l.Record.Body},
	})
}
