package webhook

import (
	"cmp"
	"encoding/json"
	"html"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

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
