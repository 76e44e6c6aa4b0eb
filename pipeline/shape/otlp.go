package shape

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// Encoding names the encoding in which OTLP is sent.
type Encoding string

// The encodings. The zero value is EncodingJSON too.
const (
	EncodingJSON     Encoding = "json"
	EncodingProtobuf Encoding = "protobuf"
)

// OTLP in JSON: opentelemetry-proto, logs/v1/logs.proto and common/v1/common.proto. Its 64-bit numbers are texts.

type otlpLogs struct {
	Resource  otlpResource `json:"resource"`
	ScopeLogs []otlpScope  `json:"scopeLogs"`
}

type otlpResource struct {
	Attributes []otlpAttribute `json:"attributes"`
}

type otlpScope struct {
	Scope struct {
		Name string `json:"name"`
	} `json:"scope"`
	LogRecords []otlpRecord `json:"logRecords"`
}

type otlpRecord struct {
	Time           string          `json:"timeUnixNano,omitempty"`
	Observed       string          `json:"observedTimeUnixNano"`
	SeverityNumber int             `json:"severityNumber,omitempty"`
	SeverityText   string          `json:"severityText,omitempty"`
	Body           map[string]any  `json:"body"`
	Attributes     []otlpAttribute `json:"attributes"`
	EventName      string          `json:"eventName"`
}

type otlpAttribute struct {
	Key   string         `json:"key"`
	Value map[string]any `json:"value"`
}

// The severities of OTLP for what Events call Normal and Warning.
const (
	severityInfo = 9
	severityWarn = 13
)

// otlp appends the record of an entry: a request with one log record, whose body is what the format json has as data. Resource and attributes follow the
// semantic conventions for Kubernetes and CloudEvents; what these do not name begins with kubeferry.
func (e *Encoder) otlp(b []byte, record *sinks.Record, list *attributes, entry *delta.Entry) []byte {
	decoder := json.NewDecoder(bytes.NewReader(append(e.appendData([]byte{'{'}, entry), '}')))
	decoder.UseNumber()
	var data map[string]any
	_ = decoder.Decode(&data) // it was JSON before
	object, _ := data["object"].(map[string]any)

	log := otlpRecord{
		Observed: strconv.FormatInt(entry.Observed().UnixNano(), 10), Body: otlpValue(data),
		EventName: eventTypes[delta.Type(record.Fields.Type)],
	}
	log.add("cloudevents.event_id", record.ID)
	log.add("cloudevents.event_source", e.source)
	log.add("cloudevents.event_type", log.EventName)
	log.add("cloudevents.event_subject", record.Key)
	for _, a := range list.list[:list.n] {
		if !slices.Contains([]string{"id", "cluster", "subject", "time"}, a.name) {
			log.add("kubeferry."+a.name, a.value)
		}
	}
	about := object
	switch {
	case entry.Delta == nil:
		log.SeverityNumber, log.SeverityText = severityWarn, record.Fields.Type
		if entry.Mark != nil {
			log.SeverityNumber = severityInfo
		}
	case record.Fields.Kind == "Event":
		about = log.event(object)
	}

	logs := otlpLogs{Resource: otlpResource{e.about(record, about)}, ScopeLogs: []otlpScope{{LogRecords: []otlpRecord{log}}}}
	logs.ScopeLogs[0].Scope.Name = "github.com/kubeferry/kubeferry"
	encoded, _ := delta.EncodeJSON(logs) // of decoded JSON
	return append(append(append(b, sinks.OTLPBegin...), encoded...), sinks.OTLPEnd...)
}

// about returns the resource of a record: the cluster, the namespace and, where the conventions name its kind, the object.
func (e *Encoder) about(record *sinks.Record, object map[string]any) []otlpAttribute {
	var resource otlpRecord
	resource.add("k8s.cluster.name", e.cluster)
	resource.add("k8s.namespace.name", record.Fields.Namespace)
	metadata, _ := object["metadata"].(map[string]any)
	kind := strings.ToLower(text(object, "kind"))
	if slices.Contains([]string{
		"cronjob", "daemonset", "deployment", "horizontalpodautoscaler", "job", "namespace", "node", "pod", "replicaset", "replicationcontroller", "resourcequota", "statefulset",
	}, kind) {
		if kind == "horizontalpodautoscaler" {
			kind = "hpa"
		}
		if kind != "namespace" {
			resource.add("k8s."+kind+".name", text(metadata, "name"))
		} else if record.Fields.Namespace == "" {
			resource.add("k8s.namespace.name", text(metadata, "name"))
		}
		resource.add("k8s."+kind+".uid", text(metadata, "uid"))
	}
	return resource.Attributes
}

// event adds what is known of an Event, of v1 or of events.k8s.io, and returns the object that it is about.
func (r *otlpRecord) event(event map[string]any) map[string]any {
	r.SeverityNumber, r.SeverityText = severityInfo, text(event, "type")
	if r.SeverityText == "Warning" {
		r.SeverityNumber = severityWarn
	}
	series, _ := event["series"].(map[string]any)
	for _, t := range []string{
		text(series, "lastObservedTime"), text(event, "lastTimestamp"), text(event, "deprecatedLastTimestamp"), text(event, "eventTime"),
	} {
		if at, err := time.Parse(time.RFC3339Nano, t); err == nil {
			r.Time = strconv.FormatInt(at.UnixNano(), 10)
			break
		}
	}
	about, ok := event["involvedObject"].(map[string]any)
	if !ok {
		about, _ = event["regarding"].(map[string]any)
	}
	metadata, _ := event["metadata"].(map[string]any)
	r.add("k8s.event.name", text(metadata, "name"))
	r.add("k8s.event.uid", text(metadata, "uid"))
	r.add("k8s.event.reason", text(event, "reason"))
	r.add("k8s.event.action", text(event, "action"))
	return map[string]any{"kind": about["kind"], "metadata": about}
}

// add adds an attribute, unless it is empty.
func (r *otlpRecord) add(key, value string) {
	if value != "" {
		r.Attributes = append(r.Attributes, otlpAttribute{key, otlpValue(value)})
	}
}

func text(object map[string]any, name string) string {
	value, _ := object[name].(string)
	return value
}

// otlpValue is the AnyValue of decoded JSON. That of null is empty.
func otlpValue(value any) map[string]any {
	switch value := value.(type) {
	case string:
		return map[string]any{"stringValue": value}
	case bool:
		return map[string]any{"boolValue": value}
	case json.Number:
		if _, err := value.Int64(); err == nil {
			return map[string]any{"intValue": value.String()}
		}
		if f, err := value.Float64(); err == nil {
			return map[string]any{"doubleValue": f}
		}
		return map[string]any{"stringValue": value.String()} // a number that nothing holds
	case []any:
		values := make([]any, len(value))
		for i, item := range value {
			values[i] = otlpValue(item)
		}
		return map[string]any{"arrayValue": map[string]any{"values": values}}
	case map[string]any:
		values := make([]otlpAttribute, 0, len(value))
		for _, key := range slices.Sorted(maps.Keys(value)) {
			values = append(values, otlpAttribute{key, otlpValue(value[key])})
		}
		return map[string]any{"kvlistValue": map[string]any{"values": values}}
	}
	return map[string]any{}
}
