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
	body, err := json.Marshal(letter)
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

// DecodeLetter reads a letter as [SinkLetters] writes it. Its record's DedupID is the one it was first sent with.
func DecodeLetter(data []byte) (Letter, error) {
	var letter Letter
	if err := json.Unmarshal(data, &letter); err != nil {
		return Letter{}, err
	}
	if letter.Pipeline == "" || letter.Record.ID == "" {
		return Letter{}, errors.New("not a dead letter: it has no pipeline or no record")
	}
	letter.Record.DedupID = letter.Pipeline + "/" + letter.Record.ID
	return letter, nil
}
