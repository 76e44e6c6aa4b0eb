package webhook

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/sinks"
)

// occurs reports whether a piece of text that is so long occurs in what was sent.
func occurs(text string, sent []*sinks.Record, length int) bool {
	for i := 0; i+length <= len(text); i++ {
		for _, r := range sent {
			if strings.Contains(string(r.Body), text[i:i+length]) {
				return true
			}
		}
	}
	return false
}

// What repeats 19 bytes is found wherever they are, and what repeats less than 16 is none.
func TestRepeats(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[abc]{6,40}`).Draw(t, "text")
		body := rapid.StringMatching(`[ab]{0,30}`).Draw(t, "body")
		length := rapid.IntRange(14, 21).Draw(t, "length")
		if len(text) >= length {
			from := rapid.IntRange(0, len(text)-length).Draw(t, "from")
			body += text[from:from+length] + "-"
		}
		sent := []*sinks.Record{{Body: []byte("c")}, {Body: []byte(body)}}
		got := repeats(text, sent)
		if occurs(text, sent, 19) && !got || got && !occurs(text, sent, 16) {
			t.Errorf("got %t", got)
		}
	})
}
