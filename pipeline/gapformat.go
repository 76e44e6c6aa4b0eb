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
	Selectors gapSelectors                `json:"selectors"`
	From      string                      `json:"from"`
	To        string                      `json:"to"`
	Reason    string                      `json:"reason"`
	Unclean   bool                        `json:"unclean"`
}

type gapSelectors struct {
	Label string `json:"label,omitempty"`
	Field string `json:"field,omitempty"`
}

// appendGap writes the members of the data of a gap record.
func appendGap(b []byte, g *delta.Gap) []byte {
	data, _ := json.Marshal(gapData{ // of texts: it cannot fail
		delta.GapType,
		metav1.GroupVersionResource(g.Resource),
		g.Namespace,
		gapSelectors{g.LabelSelector, g.FieldSelector},
		g.From, g.To, g.Reason, g.Unclean,
	})
	return append(b, data[1:len(data)-1]...)
}
