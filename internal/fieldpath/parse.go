package fieldpath

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// maxSteps is deeper than any object; it keeps what [Path.Set] creates encodable.
const maxSteps = 64

// SyntaxError is the error of a text that is no path.
type SyntaxError struct {
	// Offset in bytes.
	Offset int
	// Expected is what should stand there. It repeats nothing of the text.
	Expected string
	// Hint is what was probably meant, or empty. It may repeat parts of the text.
	Hint string
}

// Error implements error. It repeats nothing of the text.
func (e *SyntaxError) Error() string {
	return fmt.Sprintf("offset %d: expected %s", e.Offset, e.Expected)
}

// Parse reads a path. Its error is a *[SyntaxError].
func Parse(text string) (Path, error) {
	p := parser{text: text}
	if err := p.path(); err != nil {
		return Path{}, err
	}
	return Path{p.steps, p.offsets}, nil
}

// UnmarshalText is [Parse].
func (p *Path) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err == nil {
		*p = parsed
	}
	return err
}

type parser struct {
	text    string
	pos     int
	steps   []Step
	offsets []int
}

func (p *parser) path() error {
	if i := invalidUTF8(p.text); i >= 0 {
		return &SyntaxError{Offset: i, Expected: "UTF-8 text"}
	}
	if p.text == "" {
		return p.expected("a path such as spec.template", "")
	}
	var err error
	if p.peek() == '[' {
		err = p.first()
	} else {
		err = p.name("a name such as spec")
	}
	for err == nil && p.pos < len(p.text) {
		if len(p.steps) == maxSteps {
			return p.expected("the end: a path has at most "+strconv.Itoa(maxSteps)+" steps", "")
		}
		switch p.peek() {
		case '.':
			p.pos++
			err = p.name(`a name after "."`)
		case '[':
			err = p.bracket()
		default:
			err = p.expected(`".", "[" or the end`, p.quotesHint())
		}
	}
	return err
}

// first reads a bracket at the beginning: an object is a map, and it has no items.
func (p *parser) first() error {
	if err := p.bracket(); err != nil {
		return err
	}
	if p.steps[0].Kind != Name {
		p.pos = 0
		return p.expected("a name such as spec", "")
	}
	return nil
}

// name reads a name without quotes.
func (p *parser) name(expected string) error {
	from := p.pos
	for p.pos < len(p.text) && isWord(p.text[p.pos]) {
		p.pos++
	}
	name := p.text[from:p.pos]
	if isPlain(name) {
		p.add(Step{Kind: Name, Name: name}, from)
		return nil
	}
	p.pos = from
	hint := ""
	switch {
	case name != "":
		hint = fmt.Sprintf(`write [%s] for an item of a list, ["%s"] for a name`, name, name)
	case p.peek() == '*':
		hint = "every item of a list, or value of a map, is [*]"
	case p.peek() == '[' && from > 0:
		hint = `a "[" has no "." before it`
	case from == 0 && (p.peek() == '.' || p.peek() == '$' || p.peek() == '/'):
		hint = "a path begins with a name, and its steps are separated by dots"
	}
	return p.expected(expected, hint)
}

// bracket reads [*], [0] or ["name"].
func (p *parser) bracket() error {
	from := p.pos
	p.pos++
	switch c := p.peek(); {
	case c == '*':
		p.pos++
		p.add(Step{Kind: Every}, from)
	case isDigit(c):
		index, err := p.index()
		if err != nil {
			return err
		}
		p.add(Step{Kind: Index, Index: index}, from)
	case c == '"' || c == '\'':
		name, err := p.quoted()
		if err != nil {
			return err
		}
		p.add(Step{Kind: Name, Name: name}, from)
	default:
		return p.expected(`*, a number or a name in quotes after "["`, p.bracketHint())
	}
	if p.peek() != ']' {
		return p.expected(`"]"`, "")
	}
	p.pos++
	return nil
}

func (p *parser) index() (int, error) {
	from := p.pos
	for isDigit(p.peek()) {
		p.pos++
	}
	digits := p.text[from:p.pos]
	if len(digits) > 9 || len(digits) > 1 && digits[0] == '0' {
		p.pos = from
		return 0, p.expected("a number below 1000000000, without zeros before it", "")
	}
	return strconv.Atoi(digits)
}

// quoted reads a string with the escapes of JSON, and \' for single quotes.
func (p *parser) quoted() (string, error) {
	open := p.pos
	mark := p.text[open]
	var b strings.Builder
	for p.pos++; p.pos < len(p.text); {
		switch c := p.text[p.pos]; c {
		case mark:
			p.pos++
			return b.String(), nil
		case '\\':
			r, ok := p.escape()
			if !ok {
				return "", p.expected(`one of \" \' \\ \/ \b \f \n \r \t \u0000`, "")
			}
			b.WriteRune(r)
		default:
			b.WriteByte(c)
			p.pos++
		}
	}
	p.pos = open
	return "", p.expected("a quote that ends this one", "")
}

// escape reads one; if it cannot, it stays where it is.
func (p *parser) escape() (rune, bool) {
	const letters, meanings = `"'\/bfnrt`, "\"'\\/\b\f\n\r\t"
	rest := p.text[p.pos+1:]
	if rest == "" {
		return 0, false
	}
	if i := strings.IndexByte(letters, rest[0]); i >= 0 {
		p.pos += 2
		return rune(meanings[i]), true
	}
	r, ok := unicodeEscape(p.text[p.pos:])
	if !ok {
		return 0, false
	}
	if !utf16.IsSurrogate(r) {
		p.pos += 6
		return r, true
	}
	second, ok := unicodeEscape(p.text[p.pos+6:])
	if r = utf16.DecodeRune(r, second); !ok || r == utf8.RuneError {
		return 0, false
	}
	p.pos += 12
	return r, true
}

// unicodeEscape is the \u0000 at the beginning of text.
func unicodeEscape(text string) (rune, bool) {
	if len(text) < 6 || text[:2] != `\u` {
		return 0, false
	}
	n, err := strconv.ParseUint(text[2:6], 16, 16)
	return rune(n), err == nil
}

func (p *parser) add(step Step, offset int) {
	p.steps = append(p.steps, step)
	p.offsets = append(p.offsets, offset)
}

// peek is the next byte, or 0 at the end.
func (p *parser) peek() byte {
	if p.pos == len(p.text) {
		return 0
	}
	return p.text[p.pos]
}

func (p *parser) expected(what, hint string) error {
	return &SyntaxError{Offset: p.pos, Expected: what, Hint: hint}
}

// quotesHint is for what stands where a name should end: mostly a label or an annotation without its quotes.
func (p *parser) quotesHint() string {
	if strings.ContainsAny(p.text, `"'[`) {
		return `other characters than letters, digits, "_" and "-" need quotes: ["…"]`
	}
	for i, step := range p.steps {
		if (step.Name == "labels" || step.Name == "annotations") && i+1 < len(p.steps) {
			return "write " + Path{steps: p.steps[:i+1]}.String() + "[" + quote(p.text[p.offsets[i+1]:]) + "]"
		}
	}
	last := len(p.steps) - 1
	end := p.pos
	for end < len(p.text) && p.text[end] != '.' {
		end++
	}
	return "write " + Path{steps: p.steps[:last]}.String() + "[" + quote(p.text[p.offsets[last]:end]) + "]" + p.text[end:]
}

func (p *parser) bracketHint() string {
	end := strings.IndexByte(p.text[p.pos:], ']')
	switch {
	case end == 0:
		return "[*] is every item"
	case p.peek() == '-':
		return "items are counted from the first, which is [0]"
	case end > 0 && !strings.ContainsAny(p.text[p.pos:p.pos+end], `[*"'`):
		return "write [" + quote(p.text[p.pos:p.pos+end]) + "]"
	default:
		return ""
	}
}

// invalidUTF8 is the offset of the first byte that is no text, or -1.
func invalidUTF8(text string) int {
	for i, r := range text {
		if r == utf8.RuneError {
			if _, size := utf8.DecodeRuneInString(text[i:]); size == 1 {
				return i
			}
		}
	}
	return -1
}
