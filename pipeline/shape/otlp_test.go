package shape

import (
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	common "go.opentelemetry.io/proto/slim/otlp/common/v1"
	logs "go.opentelemetry.io/proto/slim/otlp/logs/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// valueOf is what an AnyValue says, as decoded JSON with int64.
func valueOf(v *common.AnyValue) any {
	switch value := v.GetValue().(type) {
	case *common.AnyValue_StringValue:
		return value.StringValue
	case *common.AnyValue_IntValue:
		return value.IntValue
	case *common.AnyValue_DoubleValue:
		return value.DoubleValue
	case *common.AnyValue_BoolValue:
		return value.BoolValue
	case *common.AnyValue_ArrayValue:
		list := []any{}
		for _, item := range value.ArrayValue.GetValues() {
			list = append(list, valueOf(item))
		}
		return list
	case *common.AnyValue_KvlistValue:
		return valuesOf(value.KvlistValue.GetValues())
	}
	return nil
}

func valuesOf(list []*common.KeyValue) map[string]any {
	values := map[string]any{}
	for _, kv := range list {
		values[kv.GetKey()] = valueOf(kv.GetValue())
	}
	return values
}

// TestOTLP: each record is a request by itself, in either encoding, with the names of the semantic conventions.
func TestOTLP(t *testing.T) {
	observed := time.Date(2026, 11, 21, 0, 12, 3, 5, time.UTC)
	at := func(resource schema.GroupVersionResource, kind, fields string) *delta.Entry {
		object, err := delta.NewObject([]byte(`{"apiVersion":"v1","kind":"` + kind + `","metadata":{"name":"a","namespace":"shop","uid":"u","resourceVersion":"7"},` + fields + `}`))
		if err != nil {
			t.Fatal(err)
		}
		return &delta.Entry{Delta: &delta.Delta{Type: delta.Added, Resource: resource, Object: object, Observed: observed, Snapshot: true, Sequence: 7}}
	}
	events := schema.GroupVersionResource{Version: "v1", Resource: "events"}
	for _, test := range []struct {
		name       string
		entry      *delta.Entry
		time       uint64
		severity   logs.SeverityNumber
		text       string
		resource   map[string]any
		attributes map[string]any
	}{
		{
			"pod", at(pods, "Pod", `"spec":{"list":[1,-2.5,true,null,"<ä>",99999999999999999999],"map":{}}`), 0, 0, "",
			map[string]any{"k8s.cluster.name": "c", "k8s.namespace.name": "shop", "k8s.pod.name": "a", "k8s.pod.uid": "u"},
			map[string]any{
				"cloudevents.event_id": "c/u/7/ADDED", "cloudevents.event_source": "/clusters/c", "cloudevents.event_type": "dev.kubeferry.resource.added",
				"cloudevents.event_subject": "/api/v1/namespaces/shop/pods/a", "kubeferry.sequence": "00000000000000000007",
			},
		},
		{
			"warning",
			at(events, "Event", `"type":"Warning","reason":"BackOff","lastTimestamp":"2026-11-21T00:12:01Z","eventTime":null,"involvedObject":{"kind":"Pod","name":"web","namespace":"shop","uid":"v"}`),
			uint64(observed.Truncate(time.Second).Add(-2 * time.Second).UnixNano()), logs.SeverityNumber_SEVERITY_NUMBER_WARN, "Warning",
			map[string]any{"k8s.namespace.name": "shop", "k8s.pod.name": "web", "k8s.pod.uid": "v"},
			map[string]any{"k8s.event.name": "a", "k8s.event.uid": "u", "k8s.event.reason": "BackOff"},
		},
		{
			"normal, of events.k8s.io",
			at(events, "Event", `"type":"Normal","action":"Binding","eventTime":"2026-11-21T00:12:02.000000Z","regarding":{"kind":"Node","name":"n"}`),
			uint64(observed.Truncate(time.Second).Add(-time.Second).UnixNano()), logs.SeverityNumber_SEVERITY_NUMBER_INFO, "Normal",
			map[string]any{"k8s.node.name": "n"},
			map[string]any{"k8s.event.action": "Binding"},
		},
		{
			"gap", &delta.Entry{Gap: &delta.Gap{Watch: "w", Resource: pods, Namespace: "shop", From: "1", To: "9", Reason: "gone", Observed: observed}}, 0,
			logs.SeverityNumber_SEVERITY_NUMBER_WARN, "GAP",
			map[string]any{"k8s.cluster.name": "c"},
			map[string]any{"cloudevents.event_type": "dev.kubeferry.gap"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			var decoded []*collector.ExportLogsServiceRequest
			for _, encoding := range []Encoding{EncodingJSON, EncodingProtobuf} {
				e := NewEncoder(Options{Name: "p", Cluster: "c", Format: FormatOTLP, Encoding: encoding})
				record, _, err := e.Encode(nil, test.entry)
				if err != nil {
					t.Fatal(err)
				}
				unmarshal, contentType := protojson.Unmarshal, "application/json"
				if encoding == EncodingProtobuf {
					unmarshal, contentType = proto.Unmarshal, sinks.ContentTypeProtobuf
				}
				request := &collector.ExportLogsServiceRequest{}
				if err := unmarshal(record.Content(), request); err != nil || record.ContentType != contentType {
					t.Fatalf("%s, %v: %s", record.ContentType, err, record.Content())
				}
				decoded = append(decoded, request)
			}
			if !proto.Equal(decoded[0], decoded[1]) {
				t.Errorf("as JSON %v, as protobuf %v", decoded[0], decoded[1])
			}
			of := decoded[0].GetResourceLogs()[0]
			log := of.GetScopeLogs()[0].GetLogRecords()[0]
			if log.GetTimeUnixNano() != test.time || log.GetObservedTimeUnixNano() != uint64(observed.UnixNano()) ||
				log.GetSeverityNumber() != test.severity || log.GetSeverityText() != test.text || log.GetEventName() == "" {
				t.Errorf("got %v", log)
			}
			resource, attributes := valuesOf(of.GetResource().GetAttributes()), valuesOf(log.GetAttributes())
			for name, value := range test.resource {
				if resource[name] != value {
					t.Errorf("%s of the resource: got %v, want %v", name, resource[name], value)
				}
			}
			for name, value := range test.attributes {
				if attributes[name] != value {
					t.Errorf("%s: got %v, want %v", name, attributes[name], value)
				}
			}
			plain := NewEncoder(Options{Name: "p", Cluster: "c", Format: FormatJSON})
			got, _ := delta.EncodeJSON(valueOf(log.GetBody()))
			if want := append(plain.appendData([]byte{'{'}, test.entry), '}'); !sameJSON(t, got, want) {
				t.Errorf("got the body %s, want %s", got, want)
			}
		})
	}
}
