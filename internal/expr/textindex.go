package expr

import (
	"errors"
	"strings"
	"unicode/utf8"

	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
)

var errOffset = errors.New("the offset is negative")

// textIndex is indexOf and lastIndexOf for texts, in characters, as ext.Strings defines them. Its own compare the texts at
// every place, which for long ones takes minutes.
func (m *meter) textIndex(args []ref.Val, last bool) ref.Val {
	whole, ok := args[0].(types.String)
	part, also := args[1].(types.String)
	if !ok || !also {
		return nil
	}
	text, sub := string(whole), string(part)
	m.step((len(text) + len(sub)) / 10)
	characters := utf8.RuneCountInString(text)
	from := 0
	if last {
		from = characters
	}
	if len(args) == 3 {
		offset, ok := args[2].(types.Int)
		switch {
		case !ok:
			return nil
		case offset < 0:
			return types.WrapErr(errOffset)
		case sub != "" && offset >= types.Int(characters):
			return types.IntNegOne
		}
		from = int(min(offset, types.Int(characters)))
	}
	at := (&source{text}).skip(0, from)
	switch {
	case sub == "":
		return types.Int(from)
	case last:
		at = strings.LastIndex(text[:min(at+len(sub), len(text))], sub)
	default:
		if i := strings.Index(text[at:], sub); i >= 0 {
			at += i
		} else {
			at = -1
		}
	}
	if at < 0 {
		return types.IntNegOne
	}
	return types.Int(utf8.RuneCountInString(text[:at]))
}
