package webhook

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"
	"unicode"
)

const (
	masked     = "[masked]"
	maxExcerpt = 200 // characters of a response that are shown
	// leastMasked is the length from which a piece of the configuration is masked: a shorter one is in nearly every text.
	leastMasked = 4
)

// confidential lists what the configuration itself holds that must not be shown: the values of headers, and all of the
// URL behind its host, as a whole and in pieces. Many receivers have their token there, in any part of it.
func confidential(c *Config, target *url.URL) []string {
	uri := target.RequestURI()
	plain, err := url.PathUnescape(uri)
	if err != nil { // a query may hold anything
		plain = uri
	}
	texts := append(slices.Collect(maps.Values(c.Headers)), target.EscapedPath(), target.Path, uri, plain)
	var hidden []string
	for _, text := range texts {
		pieces := strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" /:;,=&?", r) })
		for _, piece := range append(pieces, text) {
			if len(piece) >= leastMasked {
				hidden = append(hidden, piece)
			}
		}
	}
	return hidden
}

// excerpt returns the beginning of a receiver's text: one line, printable, without our credentials, which some receivers
// echo.
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
	if cut && len(forms) > 0 { // perhaps within a secret
		text = text[:max(0, len(text)-len(forms[0]))]
	}
	return printable(text)
}

// encodings returns the forms in which receivers commonly echo a secret: as it is, in JSON, and in a URL.
func encodings(secret string) []string {
	quoted, _ := json.Marshal(secret) // a string can always be encoded
	inside := string(quoted[1 : len(quoted)-1])
	return []string{secret, inside, strings.ReplaceAll(inside, "/", `\/`), url.QueryEscape(secret), url.PathEscape(secret)}
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
