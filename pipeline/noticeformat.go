package pipeline

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// gapData is the data of a gap record.
type gapData struct {
	Type      delta.Type                  `json:"type"`
	Resource  metav1.GroupVersionResource `json:"resource"`
	Namespace string                      `json:"namespace,omitempty"`
	Selectors struct {
		Label string `json:"label,omitempty"`
		Field string `json:"field,omitempty"`
	} `json:"selectors"`
	From    string `json:"from"`
	To      string `json:"to"`
	Reason  string `json:"reason"`
	Unclean bool   `json:"unclean"`
}

// markData is the data of a mark.
type markData struct {
	Type      delta.Type                  `json:"type"`
	Phase     delta.Phase                 `json:"phase"`
	Resource  metav1.GroupVersionResource `json:"resource"`
	Namespace string                      `json:"namespace,omitempty"`
	Snapshot  string                      `json:"snapshot"`
	Pipeline  string                      `json:"pipeline"`
	// Count and Complete are there once the snapshot is completed.
	Count    *uint64 `json:"count,omitempty"`
	Complete *bool   `json:"complete,omitempty"`
}

// appendMark writes the members of the data of a mark of a pipeline.
func appendMark(b []byte, m *delta.Mark, pipeline string) []byte {
	data := markData{
		Type: delta.MarkType, Phase: m.Phase, Resource: metav1.GroupVersionResource(m.Resource), Namespace: m.Namespace,
		Snapshot: m.Snapshot, Pipeline: pipeline,
	}
	if m.Phase == delta.Completed {
		data.Count, data.Complete = &m.Count, new(!m.Incomplete)
	}
	return appendMembers(b, data)
}

// appendGap writes the members of the data of a gap record.
func appendGap(b []byte, g *delta.Gap) []byte {
	data := gapData{
		Type: delta.GapType, Resource: metav1.GroupVersionResource(g.Resource), Namespace: g.Namespace,
		From: g.From, To: g.To, Reason: g.Reason, Unclean: g.Unclean,
	}
	data.Selectors.Label, data.Selectors.Field = g.LabelSelector, g.FieldSelector
	return appendMembers(b, data)
}

// appendMembers writes a struct of texts without its braces.
func appendMembers(b []byte, data any) []byte {
	encoded, _ := json.Marshal(data) // it cannot fail
	return append(b, encoded[1:len(encoded)-1]...)
}
