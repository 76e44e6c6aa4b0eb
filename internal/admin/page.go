package admin

import (
	"crypto/sha256"
	_ "embed" // of the page
	"encoding/base64"
	"fmt"
	"net/http"
	"regexp"
)

// page is the page at /. Its script reads /status every two seconds, and shows it as tables. Some of the values come from tenants and
// receivers. The script makes texts of them, and no markup. The Content-Security-Policy lets nothing run but that script.
//
//go:embed page.html
var page []byte

// servePage returns the handler of the page.
func servePage() http.HandlerFunc {
	policy := fmt.Sprintf("default-src 'none'; style-src %s; script-src %s; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
		digestOf("style"), digestOf("script"))
	return func(w http.ResponseWriter, _ *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "text/html; charset=utf-8")
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		_, _ = w.Write(page) // the client went away
	}
}

// digestOf returns the source expression of the page's only element of a name.
func digestOf(element string) string {
	content := regexp.MustCompile(`(?s)<` + element + `>(.*?)</` + element + `>`).FindSubmatch(page)
	sum := sha256.Sum256(content[1])
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}
