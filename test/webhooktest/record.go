package webhooktest

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"
)

// Record is one record of a request's body.
type Record struct {
	// ID is the CloudEvent's id from the ce-id header (binary mode) or the field `id` of the body, if there is one.
	ID   string
	Body json.RawMessage
}

// split takes a body apart: an array has many records, anything else is one. Marks of snapshots are returned apart.
func split(header http.Header, body []byte) (records, marks []Record) {
	for _, r := range parts(header, bytes.TrimSpace(body)) {
		if strings.HasSuffix(r.ID, "/SNAPSHOT") {
			marks = append(marks, r)
		} else {
			records = append(records, r)
		}
	}
	return records, marks
}

func parts(header http.Header, body []byte) []Record {
	if len(body) == 0 {
		return nil
	}
	if id := header.Get("Ce-Id"); id != "" {
		return []Record{{ID: id, Body: body}}
	}
	var parts []json.RawMessage // empty: an element that aliases body would be overwritten
	if body[0] != '[' || json.Unmarshal(body, &parts) != nil {
		parts = []json.RawMessage{body}
	}
	records := make([]Record, len(parts))
	for i, part := range parts {
		var fields struct {
			ID string `json:"id"`
		}
		_ = json.Unmarshal(part, &fields) // what is not an object has no id
		records[i] = Record{ID: fields.ID, Body: part}
	}
	return records
}
