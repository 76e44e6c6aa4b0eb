package shape

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// eventData appends the data of a CloudEvent.
func (e *Encoder) eventData(b []byte, entry *delta.Entry) []byte {
	if e.profile == ProfileKnative && entry.Delta != nil {
		return append(b, entry.Delta.Object.JSON()...)
	}
	return append(e.appendData(append(b, '{'), entry), '}')
}

// appendData writes the members of the data object.
func (e *Encoder) appendData(b []byte, entry *delta.Entry) []byte {
	switch {
	case entry.Gap != nil:
		return appendGap(b, entry.Gap)
	case entry.Mark != nil:
		return appendMark(b, entry.Mark)
	}
	d := entry.Delta
	b = append(b, `"type":"`...)
	b = append(b, d.Type...)
	b = append(b, `","resource":{"group":`...)
	b = appendString(b, d.Resource.Group)
	b = append(b, `,"version":`...)
	b = appendString(b, d.Resource.Version)
	b = append(b, `,"resource":`...)
	b = appendString(b, d.Resource.Resource)
	b = append(b, `},"object":`...)
	b = append(b, d.Object.JSON()...)
	if changedBy := d.ChangedBy(); changedBy != nil {
		b = append(append(b, `,"changedBy":`...), changedBy...)
	}
	b = appendDifference(b, d.Difference)
	if d.Snapshot {
		b = append(b, `,"snapshot":true`...)
	}
	if d.Inferred {
		b = append(b, `,"inferred":true`...)
	}
	if d.FinalStateUnknown {
		b = append(b, `,"finalStateUnknown":true`...)
	}
	return b
}

// appendDifference writes what a record holds of the previous version, or that it is unknown.
func appendDifference(b []byte, d *delta.Difference) []byte {
	switch {
	case d == nil:
		return b
	case !d.Known:
		return append(b, `,"oldObjectKnown":false`...)
	}
	if d.OldObject != nil {
		b = append(append(b, `,"oldObject":`...), d.OldObject...)
	}
	if d.Patch != nil {
		b = append(append(b, `,"patch":`...), d.Patch...)
	}
	return appendString(append(b, `,"oldResourceVersion":`...), d.OldResourceVersion)
}

// gapData is the data of a gap record.
type gapData struct {
	Type      delta.Type                  `json:"type"`
	Resource  metav1.GroupVersionResource `json:"resource"`
	Namespace string                      `json:"namespace,omitempty"`
	From      string                      `json:"from"`
	To        string                      `json:"to"`
	Reason    delta.GapReason             `json:"reason"`
}

// appendGap writes the members of the data of a gap record.
func appendGap(b []byte, g *delta.Gap) []byte {
	return appendMembers(b, gapData{
		Type: delta.GapType, Resource: metav1.GroupVersionResource(g.Resource), Namespace: g.Namespace,
		From: g.From, To: g.To, Reason: g.Reason,
	})
}

// markData is the data of a mark.
type markData struct {
	Type             delta.Type                  `json:"type"`
	Phase            string                      `json:"phase"`
	Resource         metav1.GroupVersionResource `json:"resource"`
	Namespace        string                      `json:"namespace,omitempty"`
	SnapshotSequence string                      `json:"snapshotSequence,omitempty"`
	Count            uint64                      `json:"count"`
	Complete         bool                        `json:"complete"`
	Except           []string                    `json:"except,omitempty"`
}

// appendMark writes the members of the data of a mark.
func appendMark(b []byte, m *delta.Mark) []byte {
	return appendMembers(b, markData{
		Type: delta.MarkType, Phase: "completed", Resource: metav1.GroupVersionResource(m.Resource), Namespace: m.Namespace,
		SnapshotSequence: delta.FormatSequence(m.SnapshotSequence), Count: m.Count, Complete: !m.Incomplete, Except: m.Except,
	})
}

// appendMembers writes a struct of texts without its braces.
func appendMembers(b []byte, data any) []byte {
	encoded, _ := json.Marshal(data) // it cannot fail
	return append(b, encoded[1:len(encoded)-1]...)
}

// appendString writes a JSON string. What goes in is nearly always plain ASCII.
func appendString(b []byte, text string) []byte {
	for i := range len(text) {
		if c := text[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			quoted, _ := json.Marshal(text) // of a string: it cannot fail
			return append(b, quoted...)
		}
	}
	b = append(b, '"')
	b = append(b, text...)
	return append(b, '"')
}
