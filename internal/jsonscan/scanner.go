// Package jsonscan reads JSON from front to back without decoding it into values.
package jsonscan

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// maxDepth is how deeply JSON may be nested. The API server accepts objects of 10,000 levels, which is the limit of
// encoding/json, and a list has some levels around its objects.
const maxDepth = 10_000 + 10

// Scanner reads JSON from front to back, and allocates nothing except for strings with escapes. A method that finds a syntax error returns an
// error with its offset, and the scanner must not be used any more.
type Scanner struct {
	data   []byte
	pos    int
	member int
	depth  int
}

// NewScanner returns a scanner at the beginning of data. The caller must not modify data while the scanner, or bytes that it returned, are in use.
func NewScanner(data []byte) *Scanner { return &Scanner{data: data} }

// Offset returns how many bytes were read.
func (s *Scanner) Offset() int { return s.pos }

// Member returns the offset of the key of the member that [Scanner.Object] visits last.
func (s *Scanner) Member() int { return s.member }

// End returns an error if anything but white space follows.
func (s *Scanner) End() error {
	s.space()
	if s.pos != len(s.data) {
		return s.fail("unexpected data after the value")
	}
	return nil
}

// Object reads an object, and calls visit for each member. visit gets the decoded key, and must read the value. An error of visit ends Object,
// which returns it.
func (s *Scanner) Object(visit func(key []byte) error) error {
	return s.members(true, visit)
}

// members is [Scanner.Object], with keys as they stand if decode is not set: in managedFields nearly half of them hold escapes,
// and decoding these took a sixth of the CPU time of a backlog of Pods.
func (s *Scanner) members(decode bool, visit func(key []byte) error) error {
	if err := s.open('{'); err != nil {
		return err
	}
	defer s.leave()
	if s.closes('}') {
		return nil
	}
	for {
		s.space()
		member := s.pos
		key, escaped, err := s.quoted()
		if err == nil && escaped && decode {
			key, err = unescape(key)
		}
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		s.member = member
		if err := visit(key); err != nil {
			return err
		}
		if s.closes('}') {
			return nil
		}
		if err := s.expect(','); err != nil {
			return err
		}
	}
}

// Array reads an array, and calls visit for each element, which visit must read. An error of visit ends Array, which returns it.
func (s *Scanner) Array(visit func() error) error {
	if err := s.open('['); err != nil {
		return err
	}
	defer s.leave()
	if s.closes(']') {
		return nil
	}
	for {
		if err := visit(); err != nil {
			return err
		}
		if s.closes(']') {
			return nil
		}
		if err := s.expect(','); err != nil {
			return err
		}
	}
}

// Value reads the next value, and returns its bytes. They are a part of the scanner's data.
func (s *Scanner) Value() ([]byte, error) {
	s.space()
	from := s.pos
	err := s.Skip()
	return s.data[from:s.pos], err
}

// Text reads a string, and returns it decoded. If the string has no escapes, the result is a part of the scanner's data, and else a copy.
func (s *Scanner) Text() ([]byte, error) {
	raw, escaped, err := s.quoted()
	if err != nil || !escaped {
		return raw, err
	}
	return unescape(raw)
}

// Skip reads the next value, of any type.
func (s *Scanner) Skip() error {
	switch c := s.Peek(); {
	case c == '{':
		return s.members(false, s.skipMember)
	case c == '[':
		return s.Array(s.Skip)
	case c == '"':
		_, _, err := s.quoted()
		return err
	case c == 't':
		return s.literal("true")
	case c == 'f':
		return s.literal("false")
	case c == 'n':
		return s.literal("null")
	default:
		return s.number()
	}
}

func (s *Scanner) skipMember([]byte) error { return s.Skip() }

func (s *Scanner) open(bracket byte) error {
	if err := s.expect(bracket); err != nil {
		return err
	}
	if s.depth++; s.depth > maxDepth {
		return s.fail("nested too deeply")
	}
	return nil
}

func (s *Scanner) leave() { s.depth-- }

// closes consumes the bracket if it is next.
func (s *Scanner) closes(bracket byte) bool {
	if s.Peek() != bracket {
		return false
	}
	s.pos++
	return true
}

func (s *Scanner) expect(c byte) error {
	if s.Peek() != c {
		return s.fail("expected " + strconv.QuoteRune(rune(c)))
	}
	s.pos++
	return nil
}

// Peek skips white space, and returns the next byte without reading it, or 0 at the end.
func (s *Scanner) Peek() byte {
	s.space()
	if s.pos == len(s.data) {
		return 0
	}
	return s.data[s.pos]
}

func (s *Scanner) space() {
	for s.pos < len(s.data) && IsSpace(s.data[s.pos]) {
		s.pos++
	}
}

// IsSpace reports whether a byte is white space between the parts of JSON.
func IsSpace(c byte) bool { return c <= ' ' && (c == ' ' || c == '\n' || c == '\t' || c == '\r') }

// quoted consumes a string and returns what is between the quotes.
func (s *Scanner) quoted() (raw []byte, escaped bool, err error) {
	if err := s.expect('"'); err != nil {
		return nil, false, err
	}
	from := s.pos
	for {
		s.plain()
		if s.pos >= len(s.data) {
			return nil, false, s.fail("a string without an end")
		}
		switch c := s.data[s.pos]; {
		case c == '"':
			s.pos++
			return s.data[from : s.pos-1], escaped, nil
		case c == '\\':
			escaped = true
			if err := s.escape(); err != nil {
				return nil, false, err
			}
		default:
			return nil, false, s.fail("control character in a string")
		}
	}
}

// plain advances to the next quote, backslash or control character, eight bytes at a time.
func (s *Scanner) plain() {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for s.pos+8 <= len(s.data) {
		word := binary.LittleEndian.Uint64(s.data[s.pos:])
		quote, slash := word^(ones*'"'), word^(ones*'\\')
		// A byte's top bit is set where it is zero (quote, slash) or below 0x20 (control). A borrow can raise a
		// false bit only above a true one, and only the lowest counts.
		found := ((quote-ones)&^quote | (slash-ones)&^slash | (word-ones*0x20)&^word) & tops
		if found != 0 {
			s.pos += bits.TrailingZeros64(found) / 8
			return
		}
		s.pos += 8
	}
	for s.pos < len(s.data) {
		if c := s.data[s.pos]; c == '"' || c == '\\' || c < 0x20 {
			return
		}
		s.pos++
	}
}

func (s *Scanner) escape() error {
	rest := s.data[s.pos+1:]
	switch {
	case len(rest) >= 1 && strings.IndexByte(`"\/bfnrt`, rest[0]) >= 0:
		s.pos += 2
	case len(rest) >= 5 && rest[0] == 'u' && isHex(rest[1:5]):
		s.pos += 6
	default:
		return s.fail("unknown escape in a string")
	}
	return nil
}

func isHex(digits []byte) bool {
	for _, c := range digits {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return false
		}
	}
	return true
}

func (s *Scanner) literal(word string) error {
	if !bytes.HasPrefix(s.data[s.pos:], []byte(word)) {
		return s.fail("unknown word")
	}
	s.pos += len(word)
	return nil
}

// number consumes -?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)? as RFC 8259 has it.
func (s *Scanner) number() error {
	if s.next() == '-' {
		s.pos++
	}
	if s.next() == '0' {
		s.pos++
	} else if err := s.digits(); err != nil {
		return err
	}
	if s.next() == '.' {
		s.pos++
		if err := s.digits(); err != nil {
			return err
		}
	}
	if c := s.next(); c == 'e' || c == 'E' {
		s.pos++
		if c := s.next(); c == '+' || c == '-' {
			s.pos++
		}
		return s.digits()
	}
	return nil
}

func (s *Scanner) digits() error {
	from := s.pos
	for c := s.next(); c >= '0' && c <= '9'; c = s.next() {
		s.pos++
	}
	if s.pos == from {
		return s.fail("expected a value")
	}
	return nil
}

func (s *Scanner) next() byte {
	if s.pos < len(s.data) {
		return s.data[s.pos]
	}
	return 0
}

// fail makes a syntax error at the present offset.
func (s *Scanner) fail(message string) error {
	return fmt.Errorf("malformed JSON at offset %d: %s", s.pos, message)
}

// unescape decodes the inside of a string that quoted has checked. It is rare: the keys and names that kubeferry
// reads hold no escapes.
func unescape(raw []byte) ([]byte, error) {
	quoted := make([]byte, 0, len(raw)+2)
	quoted = append(append(append(quoted, '"'), raw...), '"')
	var text string
	err := json.Unmarshal(quoted, &text)
	return []byte(text), err
}
