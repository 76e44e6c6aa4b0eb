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

// appendGap writes the members of the data of a gap record.
func appendGap(b []byte, g *delta.Gap) []byte {
	data := gapData{
		Type: delta.GapType, Resource: metav1.GroupVersionResource(g.Resource), Namespace: g.Namespace,
		From: g.From, To: g.To, Reason: g.Reason, Unclean: g.Unclean,
	}
	data.Selectors.Label, data.Selectors.Field = g.LabelSelector, g.FieldSelector
	encoded, _ := json.Marshal(data) // of texts: it cannot fail
	return append(b, encoded[1:len(encoded)-1]...)
}
