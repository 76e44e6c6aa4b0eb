package webhook

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/kubeferry/kubeferry/sinks"
)

const (
	maxRead     = 64 << 10    // of a response; what is longer costs the connection, not memory
	maxReadTime = time.Second // and what is slower too
	maxExcerpt  = 200         // characters of a response that are shown
)

// reasonOf says what a status means. Whether it is permanent is the configuration's to say.
func reasonOf(status int) sinks.Reason {
	switch status {
	case http.StatusRequestEntityTooLarge:
		return sinks.ReasonTooLarge
	case http.StatusBadRequest, http.StatusUnsupportedMediaType, http.StatusUnprocessableEntity:
		return sinks.ReasonRejected
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusProxyAuthRequired:
		return sinks.ReasonUnauthorized
	case http.StatusNotFound, http.StatusGone:
		return sinks.ReasonNotFound
	case http.StatusRequestTimeout:
		return sinks.ReasonTimeout
	case http.StatusTooManyRequests:
		return sinks.ReasonThrottled
	}
	switch {
	case status >= 500:
		return sinks.ReasonUnavailable
	case status >= 300 && status < 400:
		return sinks.ReasonNotFound
	default:
		return sinks.ReasonOther
	}
}

// readBody reads a response within bounds of bytes and time, so that its connection can be used again. The status has
// said what there is to say, so a body that is late changes nothing; it takes a quarter of the time that the call has
// left at most, so that a refused array can still be taken apart. Past the bound, cancel ends the request.
func readBody(ctx context.Context, resp *http.Response, cancel context.CancelFunc) []byte {
	bound := maxReadTime
	if deadline, ok := ctx.Deadline(); ok {
		bound = min(bound, time.Until(deadline)/4)
	}
	timer := time.AfterFunc(bound, cancel)
	defer timer.Stop()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxRead))
	return body
}

// answer classifies a response. What the receiver says is left out where it repeats what was sent.
func (s *Sink) answer(resp *http.Response, body []byte, sent []*sinks.Record, creds *secrets) (divide bool, err error) {
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return false, nil
	}
	message := fmt.Sprintf("%s answered %d %s", origin(s.target), resp.StatusCode, http.StatusText(resp.StatusCode))
	if to, err := resp.Location(); err == nil && resp.StatusCode < 400 {
		message += ": redirects are not followed: set url to where it leads" + at(to, nil)
	}
	if excerpt := creds.excerpt(string(body)); excerpt != "" && !repeats(excerpt, sent) {
		message += ": " + excerpt
	}
	refusal := &sinks.Error{
		Err: errors.New(message), Reason: reasonOf(resp.StatusCode),
		Permanent:  slices.Contains(s.config.PermanentStatuses, resp.StatusCode),
		RetryAfter: s.retryAfter(resp.Header.Get("Retry-After")),
	}
	return refusal.Permanent || resp.StatusCode == http.StatusRequestEntityTooLarge, refusal
}

// repeats reports whether a piece of text, long enough to be no accident, occurs in what was sent.
func repeats(text string, sent []*sinks.Record) bool {
	const window = 16
	for i := 0; i+window <= len(text); i++ {
		piece := []byte(text[i : i+window])
		if slices.ContainsFunc(sent, func(r *sinks.Record) bool { return bytes.Contains(r.Body, piece) }) {
			return true
		}
	}
	return false
}

// noAnswer classifies the error of a request without a response.
func (s *Sink) noAnswer(ctx context.Context, err error, creds *secrets) error {
	reason := sinks.ReasonUnreachable
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		err = urlErr.Err // its text holds the whole URL
	}
	var opErr *net.OpError
	var netErr net.Error
	var classified *sinks.Error // by proxyAnswer
	switch {
	case errors.As(err, &classified):
		reason = classified.Reason
	case errors.Is(ctx.Err(), context.Canceled):
		return sinks.Transient(sinks.ReasonCancelled, fmt.Errorf("send to %s: %w", origin(s.target), ctx.Err()))
	case ctx.Err() != nil:
		return sinks.Transient(sinks.ReasonTimeout, fmt.Errorf("no answer from %s in time: %w", origin(s.target), ctx.Err()))
	case errors.As(err, &netErr) && netErr.Timeout():
		reason = sinks.ReasonTimeout
	case errors.As(err, &opErr) && opErr.Op == "remote error":
		reason = sinks.ReasonUnauthorized // a TLS alert: it does not like our certificate, or the lack of one
	}
	text := printable(err.Error())
	if !local(err) { // net/http quotes an answer that it cannot read
		text = creds.excerpt(err.Error())
	}
	return sinks.Transient(reason, fmt.Errorf("send to %s: %s", origin(s.target), text))
}

// local reports whether nothing in err's text comes from whoever read the request.
func local(err error) bool {
	var opErr *net.OpError
	var dnsErr *net.DNSError
	var certErr *tls.CertificateVerificationError
	return errors.As(err, &opErr) || errors.As(err, &dnsErr) || errors.As(err, &certErr)
}

// origin is what may be said of a URL: many receivers put their token into the path or the query.
func origin(u *url.URL) string { return u.Scheme + "://" + u.Host }

// retryAfter reads both forms of the header: seconds, of any number of digits, and an HTTP date. Anything else asks for
// nothing.
func (s *Sink) retryAfter(value string) time.Duration {
	delay := time.Duration(0)
	if digits := strings.TrimSpace(value); digits != "" && strings.Trim(digits, "0123456789") == "" {
		const most = uint64(sinks.MaxRetryAfter / time.Second)
		seconds, err := strconv.ParseUint(digits, 10, 64)
		if err != nil || seconds > most { // digits alone fail for being too many
			seconds = most
		}
		delay = time.Duration(seconds) * time.Second
	} else if at, err := http.ParseTime(value); err == nil {
		delay = at.Sub(s.now())
	}
	return min(max(delay, 0), sinks.MaxRetryAfter)
}

const (
	masked = "[masked]"
	// withheld stands for a text that shows a credential in a form that masking does not know.
	withheld = "(what it says repeats a credential, or the URL, and is not shown)"
	// wordLength is the length up to which a piece of the URL counts only as a whole word: a 1 is in nearly every text.
	wordLength = 3
)

// private is what must not be shown.
type private struct {
	texts []string // wherever they occur
	words []string // where they stand alone
}

// add takes a piece of the configuration.
func (p *private) add(text string) {
	switch {
	case !strings.ContainsFunc(text, isAlphanumeric):
	case len(text) <= wordLength:
		p.words = append(p.words, text)
	default:
		p.texts = append(p.texts, text)
	}
}

// confidential lists what the configuration itself holds that must not be shown: the values of headers, and all of the
// URL behind its host, for many receivers have their token there. Which part that is nobody knows, so that each counts.
func confidential(c *Config) private {
	var p private
	for _, value := range c.Headers {
		p.add(value)
		for _, field := range strings.Fields(value) { // the token behind "Bearer"
			p.add(field)
		}
	}
	target, fault := parseURL(c.URL)
	if fault != "" {
		return p
	}
	p.add(target.RequestURI())
	p.add(target.RawQuery)
	for _, path := range []string{target.EscapedPath(), target.Path} {
		p.add(path)
		p.parts(path)
	}
	for _, pair := range strings.FieldsFunc(target.RawQuery, func(r rune) bool { return r == '&' || r == ';' }) {
		key, value, _ := strings.Cut(pair, "=")
		if value == "" { // the key is all there is: ?token
			value = key
		}
		p.parts(value)
		if plain, err := url.QueryUnescape(value); err == nil {
			p.parts(plain)
		}
	}
	return p
}

// parts adds text and what its delimiters leave of it.
func (p *private) parts(text string) {
	p.add(strings.Trim(text, "/"))
	for _, part := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune("/:;,=&?", r) }) {
		p.add(part)
	}
}

// excerpt returns the beginning of what a receiver said: one line, printable, without our credentials, which some
// receivers echo.
func (s *secrets) excerpt(text string) string {
	var forms []string
	for _, secret := range s.hidden {
		if secret != "" {
			forms = append(forms, encodings(secret)...)
		}
	}
	slices.SortFunc(forms, func(a, b string) int { return cmp.Compare(len(b), len(a)) })
	pairs := make([]string, 0, 2*len(forms))
	for _, form := range forms {
		pairs = append(pairs, form, masked)
	}
	cut := len(text) >= maxRead
	text = strings.NewReplacer(pairs...).Replace(text)
	if cut {
		text = withoutBeginning(text, forms)
	}
	if pattern := anyCase(forms, s.words); pattern != nil {
		text = pattern.ReplaceAllLiteralString(text, masked)
	}
	if s.shows(text) {
		return withheld
	}
	return printable(text)
}

// printable returns the beginning of text on one line.
func printable(text string) string {
	text = strings.ToValidUTF8(text, "\uFFFD")
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }), " ")
	if runes := []rune(text); len(runes) > maxExcerpt {
		text = string(runes[:maxExcerpt]) + "…"
	}
	return text
}

// anyCase matches texts anywhere and words where they stand alone, in upper and lower case: %2f is %2F. Nil if there is
// nothing to match.
func anyCase(texts, words []string) *regexp.Regexp {
	var parts []string
	add := func(text, format string) {
		if utf8.ValidString(text) {
			parts = append(parts, format+regexp.QuoteMeta(text)+format)
		}
	}
	for _, text := range texts {
		add(text, "")
	}
	for _, word := range words {
		add(word, `\b`)
	}
	if len(parts) == 0 {
		return nil
	}
	pattern, err := regexp.Compile("(?i)" + strings.Join(parts, "|"))
	if err != nil {
		return nil // too many for it; shows finds what is left
	}
	return pattern
}

// shows reports whether something that is hidden is still to be read in text, in whatever combination of encodings.
func (s *secrets) shows(text string) bool {
	for _, reading := range readings(strings.ReplaceAll(text, masked, "\x00")) {
		for _, secret := range s.hidden {
			for _, form := range readings(secret) {
				if form != "" && strings.Contains(reading, form) {
					return true
				}
			}
		}
		for _, word := range s.words {
			for _, form := range readings(word) {
				if standsAlone(reading, form) {
					return true
				}
			}
		}
	}
	return false
}

// standsAlone reports whether word occurs in text with no letter or digit beside it.
func standsAlone(text, word string) bool {
	for from := 0; word != ""; {
		i := strings.Index(text[from:], word)
		if i < 0 {
			return false
		}
		start, end := from+i, from+i+len(word)
		before, _ := utf8.DecodeLastRuneInString(text[:start])
		after, _ := utf8.DecodeRuneInString(text[end:])
		if !isAlphanumeric(before) && !isAlphanumeric(after) {
			return true
		}
		from = start + 1
	}
	return false
}

func isAlphanumeric(r rune) bool {
	return r != utf8.RuneError && (unicode.IsLetter(r) || unicode.IsDigit(r))
}

// readings returns text in lower case, as it is and with the escapes of URLs, HTML and JSON undone, also where they were
// put one upon another. A plus counts as the blank that it may stand for.
func readings(text string) []string {
	text = strings.ToLower(text)
	var all []string
	for range 5 {
		all = append(all, strings.ReplaceAll(text, "+", " "))
		plain := strings.ToLower(unescape(text))
		if plain == text {
			break
		}
		text = plain
	}
	return all
}

var (
	percent = regexp.MustCompile(`%[0-9a-fA-F]{2}`)
	escaped = regexp.MustCompile(`\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|["'/\\])`)
)

// unescape undoes one layer of each kind of escapes, and leaves alone what is none.
func unescape(text string) string {
	text = html.UnescapeString(text)
	text = escaped.ReplaceAllStringFunc(text, func(escape string) string {
		if len(escape) == 2 {
			return escape[1:]
		}
		code, _ := strconv.ParseUint(escape[2:], 16, 32) // the pattern has digits only
		return string(rune(code))
	})
	return percent.ReplaceAllStringFunc(text, func(escape string) string {
		code, _ := strconv.ParseUint(escape[1:], 16, 8)
		return string([]byte{byte(code)})
	})
}

// withoutBeginning removes the beginning of a secret from the end of text, where the bound on reading cut it in two.
func withoutBeginning(text string, secrets []string) string {
	for _, secret := range secrets {
		for n := min(len(secret)-1, len(text)); n > 0; n-- {
			if strings.HasSuffix(text, secret[:n]) {
				text = text[:len(text)-n]
				break
			}
		}
	}
	return text
}

// encodings returns the forms in which a receiver may echo a secret.
func encodings(secret string) []string {
	quoted, _ := json.Marshal(secret) // a string can always be encoded
	inside := string(quoted[1 : len(quoted)-1])
	forms := []string{
		secret, inside, strings.ReplaceAll(inside, "/", `\/`), url.QueryEscape(secret), url.PathEscape(secret),
	}
	slices.Sort(forms)
	return slices.Compact(forms)
}
