package fieldpath

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxSteps is how many steps a path may have. That is more than any object needs, and few enough to encode what [Path.Set] creates.
const maxSteps = 64

// stepPattern is the text of a step: a name without quotes, an index, a star, or a name in quotes.
var stepPattern = regexp.MustCompile(`^(?:\.([\w-]*[A-Za-z_-][\w-]*)|\[(\d{1,9})\]|\[(\*)\]|\[("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')\])`)

// toJSON turns the text between quotes of either kind into that of a string of JSON.
var toJSON = strings.NewReplacer(`\\`, `\\`, `\"`, `\"`, `\'`, `'`, `"`, `\"`)

// Parse reads a path in the notation of the package. Its error says what was expected, and quotes the text from the mistake on.
func Parse(text string) (Path, error) {
	if !utf8.ValidString(text) {
		return Path{}, errors.New("expected UTF-8 text")
	}
	path, rest := Path{}, text
	for rest != "" {
		at := rest
		if rest == text && text[0] != '[' {
			at = "." + text // before the first name there is no dot
		}
		found := stepPattern.FindStringSubmatch(at)
		if found == nil {
			return Path{}, fmt.Errorf(`expected .name, [0], [*] or ["name"] at %q: a name with other characters than letters, digits, "_" and "-", or of digits alone, `+
				"stands in brackets and quotes", rest)
		}
		step := Step{Name: found[1]}
		switch {
		case found[2] != "":
			step.Kind = Index
			step.Index, _ = strconv.Atoi(found[2]) // it has nine digits at most
		case found[3] != "":
			step.Kind = Every
		case found[4] != "":
			if json.Unmarshal([]byte(`"`+toJSON.Replace(found[4][1:len(found[4])-1])+`"`), &step.Name) != nil {
				return Path{}, fmt.Errorf("expected a name with the escapes of JSON at %q", rest)
			}
		}
		path.steps = append(path.steps, step)
		rest = at[len(found[0]):]
	}
	switch {
	case path.Len() == 0 || path.steps[0].Kind != Name: // an object is a map, and has no items
		return Path{}, errors.New("expected a name such as spec at the beginning")
	case path.Len() > maxSteps:
		return Path{}, fmt.Errorf("expected a path of at most %d steps", maxSteps)
	}
	return path, nil
}
