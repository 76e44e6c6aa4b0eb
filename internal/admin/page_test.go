package admin

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

// TestPageMakesTexts: the script of the page has no means to make markup of a value. TestExtendedPage in test/e2e shows the values of
// an attacker in a browser.
func TestPageMakesTexts(t *testing.T) {
	if found := regexp.MustCompile(`innerHTML|outerHTML|insertAdjacent|document\.write|DOMParser|Fragment|setHTML|srcdoc|eval|href=.*\$`).FindAll(page, -1); found != nil {
		t.Errorf("the page has %q", found)
	}
}

// TestPagePolicy: the page has one script and one style, which the Content-Security-Policy allows. It loads nothing else.
func TestPagePolicy(t *testing.T) {
	answer := httptest.NewRecorder()
	servePage()(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", http.NoBody))
	text, policy := answer.Body.String(), answer.Header().Get("Content-Security-Policy")
	for _, element := range []string{"script", "style"} {
		before, rest, _ := strings.Cut(text, "<"+element+">")
		content, after, found := strings.Cut(rest, "</"+element+">")
		sum := sha256.Sum256([]byte(content))
		if want := element + "-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "';"; !found || !strings.Contains(policy, want) {
			t.Errorf("the policy lacks %q: %s", want, policy)
		}
		if strings.Contains(before+after, "<"+element) {
			t.Errorf("there is another <%s>", element)
		}
	}
	if found := regexp.MustCompile(`(?:src|href)="?(?:https?:)?//|url\(`).FindString(text); found != "" {
		t.Errorf("the page loads something from elsewhere: %s", found)
	}
}
