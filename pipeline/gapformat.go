package pipeline

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
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

// gap encodes a gap record, in every profile alike. The raw format has no object to send, and sends the json form.
func (e *encoder) gap(g *delta.Gap) (sinks.Record, error) {
	record := sinks.Record{
		ID:  g.ID(e.idCluster),
		Key: g.Ref().Path(),
		Fields: sinks.Fields{
			Cluster: e.cluster, Group: g.Resource.Group, Version: g.Resource.Version, Resource: g.Resource.Resource,
			Type: string(delta.GapType), // a gap has no kind, namespace or name: placeholders give "_"
		},
	}
	record.DedupID = e.pipeline + "/" + record.ID
	data, err := json.Marshal(gapData{
		delta.GapType,
		metav1.GroupVersionResource(g.Resource),
		g.Namespace,
		gapSelectors{g.LabelSelector, g.FieldSelector},
		g.From, g.To, g.Reason, g.Unclean,
	})
	if err != nil {
		return record, err
	}
	switch e.format {
	case FormatCloudEvents, FormatCloudEventsBinary:
		var ce attributes
		e.common(&ce, &record, eventType(delta.GapType), record.Key, g.Observed)
		if e.format == FormatCloudEventsBinary {
			e.binary(&record, &ce, data)
			break
		}
		record.ContentType, record.BatchContentType = cloudEvent, cloudEventBatch
		record.Body = append(append(ce.envelope(nil), data...), '}')
	default:
		record.ContentType, record.BatchContentType = applicationJSON, applicationJSON
		record.Body = append(e.beside(nil, record.ID, record.Key, g.Observed), data[1:]...) // its opening brace is ours
	}
	return record, nil
}
