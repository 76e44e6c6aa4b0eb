package webhook

import (
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// TestURLIsNotShown has a receiver echo the URL in the forms that servers commonly have for it. Whatever stands in for a
// token in the URL must not be read in the error.
func TestURLIsNotShown(t *testing.T) {
	targets := []struct{ path, token string }{
		{"/hook/s3cr3tT0ken12", "s3cr3tT0ken12"},
		{"/s3cr3tT0ken12", "s3cr3tT0ken12"},
		{"/hook/s3cr/", "s3cr"},
		{"/hook/AAAAAAAAAAAA%2FBBBBBBBBBBBB", "BBBBBBBBBBBB"},
		{"/hook/aaaaaaaa%2fbbbbbbbb", "bbbbbbbb"},
		{"/hook/id:s3cr3t;v=1", "s3cr3t"},
		{"/hook/s%C3%A4ure%20s3cr3t", "s3cr3t"},
		{"/hook?s3cr3tT0ken1234567890", "s3cr3tT0ken1234567890"},
		{"/hook?s3cr3t=", "s3cr3t"},
		{"/hook?k=a%2fsecretabcdefgh", "secretabcdefgh"},
		{"/hook?token=a%ZZs3cr3t", "s3cr3t"},
		{"/hook?a=b;token=s3cr3t", "s3cr3t"},
		{"/h/longertoken1234567890?x=y", "longertoken1234567890"},
	}
	quoted := func(text string) string {
		b, _ := json.Marshal(text)
		return string(b)
	}
	echoes := map[string]func(uri, plain string) string{
		"as sent":            func(uri, _ string) string { return "Cannot POST " + uri },
		"decoded":            func(_, plain string) string { return "Cannot POST " + plain },
		"JSON":               func(uri, _ string) string { return quoted(uri) },
		"JSON of decoded":    func(_, plain string) string { return strings.ReplaceAll(quoted(plain), "/", `\/`) },
		"HTML":               func(uri, _ string) string { return "<pre>Cannot POST " + html.EscapeString(uri) + "</pre>" },
		"percent":            func(uri, _ string) string { return url.QueryEscape(uri) },
		"the last part":      func(uri, _ string) string { return "no " + uri[strings.LastIndexAny(uri, "/?=:")+1:] + " here" },
		"without its prefix": func(uri, _ string) string { return "no route " + strings.TrimPrefix(uri, "/hook") },
		"every part":         func(_, plain string) string { return strings.Join(strings.FieldsFunc(plain, isDelimiter), "\n") },
	}
	for _, target := range targets {
		for name, echo := range echoes {
			r := newReceiver(t, nil)
			r.setAnswer(func(w http.ResponseWriter, req *http.Request, _ []byte) bool {
				plain, err := url.PathUnescape(req.RequestURI)
				if err != nil {
					plain = req.RequestURI
				}
				w.WriteHeader(http.StatusNotFound)
				_, _ = io.WriteString(w, echo(req.RequestURI, plain))
				return false
			})
			err := open(t, func(c *Config) { c.URL = "http://" + r.addr + target.path }).Deliver(t.Context(), records(1, "a"))
			r.server.Close()
			if err == nil {
				t.Fatal("got no error")
			}
			said, found := strings.CutPrefix(err.Error(), "http://"+r.addr+" answered 404 Not Found")
			if !found {
				t.Fatalf("got %v", err)
			}
			if strings.Contains(said, target.token) {
				t.Errorf("%s, echoed %s: got %v", target.path, name, err)
			}
		}
	}
}

func isDelimiter(r rune) bool { return strings.ContainsRune("/?&=;:", r) }

// TestWhatReceiversSay: masking leaves what is of use.
func TestWhatReceiversSay(t *testing.T) {
	target, err := url.Parse("https://example.com/api/v1/hook/s3cr3tT0ken12?team=sales")
	if err != nil {
		t.Fatal(err)
	}
	config := NewConfig()
	config.Headers = map[string]string{"Authorization": "Bearer header-secret", "X-Short": "x1"}
	s := &secrets{hidden: confidential(config, target)}
	for text, want := range map[string]string{
		`{"error":"the field subject is missing"}`:                 `{"error":"the field subject is missing"}`,
		"Cannot POST /api/v1/hook/s3cr3tT0ken12":                   "Cannot POST [masked]",
		"no route for s3cr3tT0ken12":                               "no route for [masked]",
		"v12 and x15":                                              "v12 and x15",
		"not authorized: header-secret":                            "not authorized: [masked]",
		"not authorized: Bearer header-secret":                     "not authorized: [masked]",
		"a capital rapid apiary":                                   "a capital rapid apiary",
		"https://example.com/api/v1/hook/s3cr3tT0ken12?team=sales": "https://example.com[masked]",
	} {
		if got := s.excerpt(text); got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
}

// TestUnreadableAnswer: net/http quotes what it cannot read, which may be an echo too.
func TestUnreadableAnswer(t *testing.T) {
	r := newReceiver(t, nil)
	r.setAnswer(func(w http.ResponseWriter, req *http.Request, _ []byte) bool {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return false
		}
		defer conn.Close()
		fmt.Fprintf(conn, "Cannot POST %s\r\n\r\n", req.RequestURI)
		return false
	})
	err := open(t, func(c *Config) { c.URL = r.url() + "/s3cr3t" }).Deliver(t.Context(), records(1, "a"))
	if err == nil || !strings.Contains(err.Error(), "malformed HTTP") || strings.Contains(err.Error(), "s3cr3t") {
		t.Errorf("got %v, want it to say that the answer is malformed, without the URL", err)
	}
}
