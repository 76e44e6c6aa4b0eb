package expr

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"cel.dev/cel-go/common"
)

// This file puts the parser's complaints into words that help. What it does not know it passes on, so that a change of
// cel-go's messages costs clarity and nothing else; tests notice.

var (
	unrecognized  = regexp.MustCompile(`^Syntax error: token recognition error at: '`)
	unexpected    = regexp.MustCompile(`^Syntax error: (?:mismatched|extraneous) input '((?s).*)' expecting `)
	noAlternative = regexp.MustCompile(`^Syntax error: no viable alternative at input '\.?((?s).*)'$`)
	missing       = regexp.MustCompile(`^Syntax error: missing '((?s).*)' at `)
)

// syntaxFaults translates what the parser found. After one mistake the parser sees others that are none; so beside what
// is certain only the first is reported.
func syntaxFaults(src *source, issues []*common.Error) Faults {
	switch {
	case strings.TrimSpace(src.text) == "":
		return Faults{src.fault(0, "the expression is empty")}
	case utf8.RuneCountInString(src.text) > maxSource:
		return Faults{src.fault(0, "the expression is longer than %d characters", maxSource)}
	}
	var certain, others []Fault
	for _, issue := range issues {
		offset := src.at(issue.Location)
		message, sure := syntaxMessage(src.text, offset, issue.Message)
		fault := src.fault(offset, "%s", message)
		if sure {
			certain = append(certain, fault)
		} else {
			others = append(others, fault)
		}
		if strings.HasPrefix(src.text[offset:], "'") || strings.HasPrefix(src.text[offset:], `"`) {
			break // from here on, text is taken for code and code for text
		}
	}
	certain = sorted(certain)
	if others = sorted(others); len(others) > 0 && (len(certain) == 0 || others[0].Offset < certain[0].Offset) {
		certain = append(certain, others[0])
	}
	return sorted(certain)
}

func syntaxMessage(text string, offset int, message string) (plain string, certain bool) {
	rest, before := text[offset:], strings.TrimRightFunc(text[:offset], unicode.IsSpace)
	switch {
	case unrecognized.MatchString(message):
		return characterMessage(rest, before), true
	case strings.HasPrefix(message, "invalid argument to has() macro"):
		return "has() takes a field, as in has(object.metadata.labels)", true
	case missing.MatchString(message):
		return "a \"" + missing.FindStringSubmatch(message)[1] + "\" is missing here", true
	case noAlternative.MatchString(message):
		if name := noAlternative.FindStringSubmatch(message)[1]; isWord(name) {
			return "\"" + name + "\" is a word of the language; as a field write it [\"" + name + "\"]", true
		}
		return "a name is missing behind the dot", false
	case unexpected.MatchString(message):
		return inputMessage(unexpected.FindStringSubmatch(message)[1], before)
	default:
		return otherMessage(message), false
	}
}

// otherMessage is about what parser and type check have in common.
func otherMessage(message string) string {
	if strings.HasPrefix(message, "expression recursion limit exceeded") || message == "max recursion depth exceeded" {
		return "the expression is nested too deeply"
	}
	return strings.TrimPrefix(message, "Syntax error: ")
}

// characterMessage is about a place where no word, number, text or sign begins.
func characterMessage(rest, before string) string {
	first := []rune(rest)[0]
	switch first {
	case '=':
		switch {
		case strings.HasSuffix(before, "=="), strings.HasSuffix(before, "!="):
			return "there is no " + before[len(before)-2:] + "=; write " + before[len(before)-2:]
		case strings.HasPrefix(rest, "=!"):
			return "there is no =!; write !="
		case strings.HasPrefix(rest, "=~"):
			return "there is no =~; write object.field.matches(\"…\")"
		default:
			return "= does not compare; write =="
		}
	case '&':
		return "write && for and"
	case '|':
		return "write || for or"
	case '"', '\'':
		return textMessage(rest, first)
	case '“', '”', '„', '‘', '’', '«', '»':
		return "this quote is not one that the language knows; write \" or '"
	case '`':
		return "this quote is not one that the language knows; write \" or '"
	case ';':
		return "an expression is one; join conditions with && or ||"
	default:
		return "the character " + string(first) + " has no meaning here"
	}
}

var badEscape = regexp.MustCompile(`\\([^abfnrtv"'\\?` + "`" + `xXuU0-3]|$)`)

// textMessage is about a text that does not end well.
func textMessage(rest string, quote rune) string {
	line, _, _ := strings.Cut(rest[1:], "\n")
	if escape := badEscape.FindString(line); escape != "" && strings.ContainsRune(line, quote) {
		return "this text holds " + escape + ", which stands for nothing; write \\" + escape + ", or put an r before the text: r\"" + escape + "\""
	}
	return "the text that begins here has no closing " + string(quote)
}

// inputMessage is about a word or sign where another one is due.
func inputMessage(input, before string) (plain string, certain bool) {
	last := lastWord(before)
	switch {
	case input == "and" || input == "AND":
		return "write && for and", true
	case input == "or" || input == "OR":
		return "write || for or", true
	case last == "not" || last == "NOT":
		return "write ! for not", true
	case input == ">" && strings.HasSuffix(before, "<"):
		return "there is no <>; write !=", true
	case input == "?" && strings.HasSuffix(before, "?"):
		return "there is no ??; write object.?field.orValue(…)", true
	case input == "<EOF>" && strings.Contains(before, "?."):
		return "there is no ?.; write .? before a field that may be absent", false
	case input == "<EOF>" && strings.Contains(before, "?") && !strings.Contains(before, ":"):
		return "a condition with ? needs : and a second value", false
	case input == "<EOF>":
		return "the expression ends too early", false
	case input == ")" || input == "]" || input == "}":
		return "this " + input + " closes nothing", false
	default:
		return "\"" + input + "\" is not expected here", false
	}
}

func isWord(s string) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) }) < 0
}

func lastWord(s string) string {
	return s[strings.LastIndexFunc(s, func(r rune) bool { return r != '_' && !unicode.IsLetter(r) && !unicode.IsDigit(r) })+1:]
}
