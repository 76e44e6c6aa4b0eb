package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/kubeferry/kubeferry/sinks"
)

// letterType is the type of a letter, for placeholders. It is not that of its record: behind a DELETED a sink may send
// what makes a compacted topic forget the key, and with it the letter.
const letterType = "DEAD"

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
	fields := letter.Record.Fields
	fields.Type = letterType
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	return s.Sink.Deliver(ctx, []sinks.Record{{
		ID: letter.Record.ID, DedupID: "dead/" + letter.Record.DedupID, Key: letter.Record.Key,
		ContentType: "application/json", BatchContentType: "application/json",
		Fields: fields, Body: body,
	}})
}

// letterJSON is a letter as it is written.
type letterJSON struct {
	Letter
	Record recordJSON `json:"record"`
}

type recordJSON struct {
	ID               string            `json:"id"`
	Key              string            `json:"key"`
	ContentType      string            `json:"contentType"`
	BatchContentType string            `json:"batchContentType,omitempty"`
	Headers          map[string]string `json:"headers,omitempty"`
	Attributes       map[string]string `json:"attributes,omitempty"`
	Fields           sinks.Fields      `json:"fields"`
	Body             json.RawMessage   `json:"body,omitempty"`
}

func (l *Letter) encode() ([]byte, error) {
	r := &l.Record
	return json.Marshal(letterJSON{
		*l, recordJSON{r.ID, r.Key, r.ContentType, r.BatchContentType, r.Headers, r.Attributes, r.Fields, r.Body},
	})
}

// DecodeLetter reads a letter as [SinkLetters] writes it. Its record's DedupID is the one it was first sent with.
func DecodeLetter(data []byte) (Letter, error) {
	var decoded letterJSON
	if err := json.Unmarshal(data, &decoded); err != nil {
		return Letter{}, err
	}
	letter, r := decoded.Letter, decoded.Record
	if letter.Pipeline == "" || r.ID == "" {
		return Letter{}, errors.New("not a dead letter: it has no pipeline or no record")
	}
	letter.Record = sinks.Record{
		ID: r.ID, DedupID: letter.Pipeline + "/" + r.ID, Key: r.Key, ContentType: r.ContentType,
		BatchContentType: r.BatchContentType, Headers: r.Headers, Attributes: r.Attributes, Fields: r.Fields, Body: r.Body,
	}
	return letter, nil
}
