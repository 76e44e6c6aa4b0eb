package webhook

import (
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/sinks"
)

// windows is the plain form of repeats: it goes through the bodies for each piece of the text.
func windows(text string, sent []*sinks.Record) bool {
	for i := 0; i+16 <= len(text); i++ {
		for _, r := range sent {
			if strings.Contains(string(r.Body), text[i:i+16]) {
				return true
			}
		}
	}
	return false
}

func TestRepeats(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[abc]{6,40}`).Draw(t, "text")
		body := rapid.StringMatching(`[ab]{0,30}`).Draw(t, "body")
		length := rapid.IntRange(15, 17).Draw(t, "length")
		if len(text) >= length {
			from := rapid.IntRange(0, len(text)-length).Draw(t, "from")
			body += text[from:from+length] + "-"
		}
		sent := []*sinks.Record{{Body: []byte("c")}, {Body: []byte(body)}}
		if got, want := repeats(text, sent), windows(text, sent); got != want {
			t.Errorf("got %t, want %t", got, want)
		}
	})
}

// A large body that was made of nearly all of a receiver's answer is gone through once, not once for each piece of it.
func TestRepeatsIsBounded(t *testing.T) {
	var text string
	for n := 0; len(text) < maxExcerpt; n++ {
		text += fmt.Sprintf("%x", sha256.Sum256([]byte{byte(n)}))
	}
	text = text[:maxExcerpt]
	var almost strings.Builder
	for almost.Len() < 4<<20 {
		for i := 0; i+16 <= len(text); i++ {
			almost.WriteString(text[i:i+15] + "~")
		}
	}
	sent := []*sinks.Record{{Body: []byte(almost.String())}}
	least := func(search func(string, []*sinks.Record) bool) (least time.Duration) {
		for n := range 5 {
			begun := time.Now()
			if search(text, sent) {
				t.Fatal("it is there")
			}
			if took := time.Since(begun); n == 0 || took < least {
				least = took
			}
		}
		return least
	}
	through := func(_ string, sent []*sinks.Record) bool {
		n := 0
		for _, c := range sent[0].Body {
			if c == '~' {
				n++
			}
		}
		return n == 0
	}
	for tries := 1; ; tries++ { // one of the two may wait for a processor
		once, took := least(through), least(repeats)
		if took <= 12*once {
			return
		}
		t.Logf("it takes %v, once through the body %v", took, once)
		if tries == 10 {
			t.Fatal("that is too long")
		}
	}
}
