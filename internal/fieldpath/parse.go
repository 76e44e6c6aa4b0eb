package fieldpath

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxSteps is how many steps a path may have. That is more than any object needs, and few enough to encode what [Path.Set] creates.
const maxSteps = 64

// Parse reads a path in the notation of the package. Its error says what was expected, and quotes the text from the mistake on.
func Parse(text string) (Path, error) {
	if !utf8.ValidString(text) {
		return Path{}, errors.New("expected UTF-8 text")
	}
	p := parser{rest: text}
	path := Path{}
	for first := true; first || p.rest != ""; first = false {
		step, err := p.step(first)
		if err != nil {
			return Path{}, err
		}
		path.steps = append(path.steps, step)
	}
	switch {
	case path.steps[0].Kind != Name: // an object is a map, and has no items
		return Path{}, errors.New("expected a name such as spec at the beginning")
	case path.Len() > maxSteps:
		return Path{}, fmt.Errorf("expected a path of at most %d steps", maxSteps)
	}
	return path, nil
}

// UnmarshalText sets the path to what [Parse] returns for a text. If that fails, the path stays as it is.
func (p *Path) UnmarshalText(text []byte) error {
	parsed, err := Parse(string(text))
	if err == nil {
		*p = parsed
	}
	return err
}

// parser takes step after step off the rest of a text.
type parser struct{ rest string }

func (p *parser) step(first bool) (Step, error) {
	switch {
	case p.take("["):
		return p.bracket()
	case first || p.take("."):
		return p.name()
	default:
		return Step{}, p.expected(`".", "[" or the end (a name with other characters than letters, digits, "_" and "-" stands in quotes, ["…"])`)
	}
}

// name reads a name without quotes.
func (p *parser) name() (Step, error) {
	name := p.takeAll(isWord)
	if !isPlain(name) {
		p.rest = name + p.rest
		return Step{}, p.expected(`a name such as spec (an item of a list is [0], every one [*], a name of digits ["0"])`)
	}
	return Step{Name: name}, nil
}

// bracket reads what follows a bracket: *], 0] or "name"].
func (p *parser) bracket() (step Step, err error) {
	digits := p.takeAll(isDigit)
	switch {
	case digits != "":
		step.Kind = Index
		if step.Index, err = strconv.Atoi(digits); err != nil {
			p.rest = digits + p.rest
			return Step{}, p.expected("a smaller number")
		}
	case p.take("*"):
		step.Kind = Every
	case strings.HasPrefix(p.rest, `"`) || strings.HasPrefix(p.rest, `'`):
		if step.Name, err = p.quoted(); err != nil {
			return Step{}, err
		}
	default:
		return Step{}, p.expected(`*, a number or a name in quotes after "["`)
	}
	if !p.take("]") {
		return Step{}, p.expected(`"]"`)
	}
	return step, nil
}

// toJSON turns the text between quotes of either kind into that of a string of JSON.
var toJSON = strings.NewReplacer(`\\`, `\\`, `\"`, `\"`, `\'`, `'`, `"`, `\"`)

// quoted reads a string with the escapes of JSON, and \' for single quotes.
func (p *parser) quoted() (name string, err error) {
	mark, end := p.rest[0], 1
	for end < len(p.rest) && p.rest[end] != mark {
		if p.rest[end] == '\\' {
			end++
		}
		end++
	}
	if end >= len(p.rest) {
		return "", p.expected("a quote that ends this one")
	}
	if json.Unmarshal([]byte(`"`+toJSON.Replace(p.rest[1:end])+`"`), &name) != nil {
		return "", p.expected("a name with the escapes of JSON")
	}
	p.rest = p.rest[end+1:]
	return name, nil
}

// take takes a text off the rest, if that begins with it.
func (p *parser) take(text string) (ok bool) {
	p.rest, ok = strings.CutPrefix(p.rest, text)
	return ok
}

// takeAll takes off the rest what it begins with of some characters.
func (p *parser) takeAll(is func(byte) bool) string {
	n := 0
	for n < len(p.rest) && is(p.rest[n]) {
		n++
	}
	taken := p.rest[:n]
	p.rest = p.rest[n:]
	return taken
}

func (p *parser) expected(what string) error {
	if p.rest == "" {
		return fmt.Errorf("expected %s at the end", what)
	}
	return fmt.Errorf("expected %s at %q", what, p.rest)
}
