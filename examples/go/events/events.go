// Package events reads records with the CloudEvents SDK.
package events

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/cloudevents/sdk-go/v2/binding/spec"
	"github.com/cloudevents/sdk-go/v2/event"

	"github.com/kubeferry/kubeferry/consume"
)

// Read reads an event whose attributes are headers behind a prefix, or one that is in the body as a whole. Names are in lower case.
func Read(prefix string, headers map[string]string, body []byte) (consume.Record, error) {
	e := event.New()
	versions := spec.WithPrefix(prefix)
	version := versions.Version(headers[versions.PrefixedSpecVersionName()])
	if version == nil {
		if err := json.Unmarshal(body, &e); err != nil {
			return consume.Record{}, fmt.Errorf("read an event: %w", err)
		}
		return Record(e)
	}
	e.Context, e.DataEncoded = version.NewContext(), body
	var subject string // from which the SDK trims blanks, and a name may end in one
	for name, value := range headers {
		var err error
		if strings.HasPrefix(name, "ce-") { // percent-encoded, which the SDK does not decode
			value, err = url.PathUnescape(value)
		}
		if name == prefix+"subject" {
			subject = value
		}
		if err == nil {
			err = version.SetAttribute(e.Context, name, value)
		}
		if err != nil {
			return consume.Record{}, fmt.Errorf("header %s: %w", name, err)
		}
	}
	return decode(e, subject)
}

// Record reads an event as a kubeferry record.
func Record(e event.Event) (consume.Record, error) { return decode(e, e.Subject()) }

func decode(e event.Event, subject string) (consume.Record, error) {
	if err := e.Validate(); err != nil {
		return consume.Record{}, fmt.Errorf("event %q: %w", e.ID(), err)
	}
	attributes := map[string]string{
		"ce_specversion": e.SpecVersion(), "ce_id": e.ID(), "ce_source": e.Source(), "ce_subject": subject, "ce_time": e.Time().Format(time.RFC3339Nano),
	}
	for name, value := range e.Extensions() {
		attributes["ce_"+name] = fmt.Sprint(value)
	}
	records, err := consume.Decode(func(name string) string { return attributes[name] }, e.Data())
	if err != nil {
		return consume.Record{}, err
	}
	if len(records) == 0 {
		return consume.Record{}, fmt.Errorf("event %q has no data", e.ID())
	}
	return records[0], nil
}
