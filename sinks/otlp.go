package sinks

import (
	"bytes"

	logs "go.opentelemetry.io/proto/slim/otlp/collector/logs/v1"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// ContentTypeProtobuf is the content type of OTLP records that are sent as protobuf. Their Body is JSON all the same.
const ContentTypeProtobuf = "application/x-protobuf"

// OTLPBegin and OTLPEnd stand around what an ExportLogsServiceRequest holds. Each OTLP record is such a request of its own.
const (
	OTLPBegin = `{"resourceLogs":[`
	OTLPEnd   = `]}`
)

// JoinOTLP appends one request with what the requests of OTLP records hold.
func JoinOTLP(b []byte, records []*Record) []byte {
	b = append(b, OTLPBegin...)
	for i, r := range records {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, bytes.TrimSuffix(bytes.TrimPrefix(r.Body, []byte(OTLPBegin)), []byte(OTLPEnd))...)
	}
	return append(b, OTLPEnd...)
}

// OTLPProtobuf returns the protobuf form of a request.
func OTLPProtobuf(request []byte) ([]byte, error) {
	var message logs.ExportLogsServiceRequest
	if err := (protojson.UnmarshalOptions{RecursionLimit: 1_000_000}).Unmarshal(request, &message); err != nil {
		return nil, err
	}
	return proto.Marshal(&message)
}

// OTLPRejected reads the answer of a receiver that took a request: how many of its records it rejected for good, and why.
func OTLPRejected(contentType string, answer []byte) (rejected int64, message string) {
	var response logs.ExportLogsServiceResponse
	unmarshal := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal
	if contentType == ContentTypeProtobuf {
		unmarshal = proto.Unmarshal
	}
	if unmarshal(answer, &response) != nil { // then it says no more than its status
		return 0, ""
	}
	return response.GetPartialSuccess().GetRejectedLogRecords(), response.GetPartialSuccess().GetErrorMessage()
}
