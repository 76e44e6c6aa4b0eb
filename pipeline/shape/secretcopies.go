package shape

import (
	"encoding/base64"
	"encoding/hex"
	"slices"
	"sort"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// copies finds what tools leave of a Secret in its annotations: its values, and copies of whole objects. It searches the
// text, with the escapes of JSON and of URLs undone, and what is base64 in it. It parses nothing, so that malformed text
// hides nothing, and the comparisons are bounded: when those are used up, everything counts as a copy.
type copies struct {
	values map[string][]string // by their first minValue bytes; sorted, and none begins with another one
	starts [1 << 10]uint64     // a bit for the hash of each of these first bytes: most places of a text need no more
	budget int                 // comparisons left for an annotation
	spaces *strings.Replacer   // removes white space, since texts are indented and broken into lines
	base64 *strings.Replacer   // removes white space, and makes the ordinary base64 of that for URLs
}

const (
	// minValue is how many bytes a value has, white space not counted, that is searched for. Shorter ones are in many texts
	// by chance.
	minValue = 4
	// An annotation may take fewComparisons, and comparisonsPerByte, with values that begin like it somewhere. One of more
	// than comparedAtOnce bytes counts for several. So the values in all annotations of a Secret, of 256 KiB, take about
	// 10 ms at most: meanwhile the Secrets of other namespaces wait.
	fewComparisons, comparisonsPerByte, comparedAtOnce = 16, 2, 256
	// maxEscapes is how often what is escaped may be escaped again.
	maxEscapes = 3
)

// newCopies searches for the values of a Secret's data, which are base64, and of its stringData.
func newCopies(data, stringData any) *copies {
	c := &copies{
		values: map[string][]string{},
		spaces: strings.NewReplacer(" ", "", "\t", "", "\n", "", "\r", ""),
		base64: strings.NewReplacer(" ", "", "\t", "", "\n", "", "\r", "", "-", "+", "_", "/"),
	}
	for _, members := range []any{data, stringData} {
		values, _ := members.(map[string]any)
		for _, value := range values {
			if text, ok := value.(string); ok && !isDigest(text) {
				c.add(text)
				if decoded, err := base64.StdEncoding.DecodeString(text); err == nil {
					c.add(string(decoded))
				}
			}
		}
	}
	for start, values := range c.values {
		c.values[start] = withoutLonger(values)
	}
	return c
}

func (c *copies) add(value string) {
	if value = c.spaces.Replace(value); len(value) >= minValue {
		start := value[:minValue]
		c.values[start] = append(c.values[start], value)
		word, bit := placeOf(start)
		c.starts[word] |= bit
	}
}

// placeOf returns where in starts the first bytes of a text are.
func placeOf(text string) (word int, bit uint64) {
	hash := (uint32(text[0]) | uint32(text[1])<<8 | uint32(text[2])<<16 | uint32(text[3])<<24) * 0x9e3779b1 >> 16
	return int(hash >> 6), 1 << (hash & 63)
}

// withoutLonger sorts values, and removes those that begin with another one: who finds them finds the shorter one.
func withoutLonger(values []string) []string {
	slices.Sort(values)
	kept := values[:0]
	for _, value := range values {
		if len(kept) == 0 || !strings.HasPrefix(value, kept[len(kept)-1]) {
			kept = append(kept, value)
		}
	}
	return kept
}

// in reports whether an annotation holds a value, or what may be a copy of an object with data.
func (c *copies) in(text string) bool {
	c.budget = fewComparisons + comparisonsPerByte*len(text)
	if c.inPlain(text) {
		return true
	}
	for range maxEscapes {
		plain, found := c.unescape(text)
		if found {
			return true
		}
		if plain == text {
			break
		}
		text = plain
	}
	text = c.base64.Replace(text)
	for _, run := range strings.FieldsFunc(text, func(r rune) bool { return !isBase64(r) }) {
		for range min(4, len(run)) { // what stands before it may look like base64 too
			whole := run
			if len(run)%4 == 1 {
				whole = run[:len(run)-1]
			}
			decoded, err := base64.RawStdEncoding.DecodeString(whole)
			if err != nil || c.inPlain(string(decoded)) {
				return true
			}
			if _, found := c.unescape(string(decoded)); found {
				return true
			}
			run = run[1:]
		}
	}
	return false
}

// unescape searches the text without the escapes of JSON, then also without those of URLs, and returns that. One after the other, since a
// value may have what looks like an escape of the other kind.
func (c *copies) unescape(text string) (plain string, found bool) {
	plain = unescapedJSON(text)
	if plain != text && c.inPlain(plain) {
		return plain, true
	}
	json := plain
	if plain = unescapedURL(json); plain != json && c.inPlain(plain) {
		return plain, true
	}
	// In the query of a URL + is a blank.
	return plain, strings.Contains(json, "+") && c.inPlain(unescapedURL(strings.ReplaceAll(json, "+", " ")))
}

// inPlain searches the text as it is.
func (c *copies) inPlain(text string) bool {
	// In base64, all that gzip makes begins with H4sI; it is not looked into.
	if hasMember(text, "data") || hasMember(text, "stringData") || strings.Contains(text, "H4sI") {
		return true
	}
	text = c.spaces.Replace(text)
	for ; len(text) >= minValue; text = text[1:] {
		if word, bit := placeOf(text); c.starts[word]&bit != 0 && c.begins(text) {
			return true
		}
	}
	return false
}

// begins reports whether the text begins with a value, or the budget is used up. Only the last value that sorts before the
// text can be one: another one between them would begin with that.
func (c *copies) begins(text string) bool {
	values := c.values[text[:minValue]]
	after := sort.Search(len(values), func(n int) bool {
		c.budget -= 1 + min(len(values[n]), len(text))/comparedAtOnce
		return values[n] > text
	})
	return c.budget < 0 || after > 0 && strings.HasPrefix(text, values[after-1])
}

// hasMember reports whether there is what looks like a member of that name: in JSON, in YAML, or as Go prints a map.
func hasMember(text, name string) bool {
	for {
		before, after, found := strings.Cut(text, name)
		if !found {
			return false
		}
		follows := strings.TrimLeft(after, "\\\"' \t\r\n")
		if strings.HasPrefix(follows, ":") && (before == "" || !isWord(before[len(before)-1])) {
			return true
		}
		text = after
	}
}

// isWord reports whether a name goes on to the left with this byte.
func isWord(b byte) bool {
	return b == '_' || b == '-' || b == '.' || isBase64(rune(b)) && b != '/' && b != '+'
}

func isBase64(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '+' || r == '/'
}

// unescapedJSON returns the text without the escapes of JSON's strings.
func unescapedJSON(text string) string {
	var b strings.Builder
	for {
		before, _, found := strings.Cut(text, `\`)
		b.WriteString(before)
		if !found {
			return b.String()
		}
		text = text[len(before):]
		char, multibyte, rest, err := strconv.UnquoteChar(text, '"')
		switch {
		case err != nil:
			if char, rest = surrogates(text); char == utf8.RuneError { // as \/
				rest = text[1:]
			} else {
				b.WriteRune(char)
			}
		case multibyte:
			b.WriteRune(char)
		default:
			b.WriteByte(byte(char))
		}
		text = rest
	}
}

// surrogates returns the character that two escapes of UTF-16 stand for, which the text begins with; else [utf8.RuneError].
func surrogates(text string) (char rune, rest string) {
	if len(text) < 12 || text[:2] != `\u` || text[6:8] != `\u` {
		return utf8.RuneError, text
	}
	high, err := strconv.ParseUint(text[2:6], 16, 16)
	low, lowErr := strconv.ParseUint(text[8:12], 16, 16)
	if err != nil || lowErr != nil {
		return utf8.RuneError, text
	}
	return utf16.DecodeRune(rune(high), rune(low)), text[12:]
}

// unescapedURL returns the text without the escapes of URLs, but for a + that is a blank.
func unescapedURL(text string) string {
	var b strings.Builder
	for {
		before, after, found := strings.Cut(text, "%")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		octet, err := hex.DecodeString(after[:min(2, len(after))])
		if err != nil || len(octet) != 1 {
			b.WriteByte('%')
			text = after
			continue
		}
		b.WriteByte(octet[0])
		text = after[2:]
	}
}
