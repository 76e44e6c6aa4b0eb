// Package jsonscan reads JSON from front to back without decoding it into values.
package jsonscan

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math/bits"
	"strconv"
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
	if err := s.open('{'); err != nil {
		return err
	}
	defer s.leave()
	if s.consumes('}') {
		return nil
	}
	for {
		s.space()
		member := s.pos
		key, err := s.Text()
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
		if s.consumes('}') {
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
	if s.consumes(']') {
		return nil
	}
	for {
		if err := visit(); err != nil {
			return err
		}
		if s.consumes(']') {
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

// Skip reads the next value, of any type. It is one loop, without a call for each value inside the value: most of an object is skipped.
func (s *Scanner) Skip() error {
	var few [32]byte
	closers := few[:0] // of the objects and arrays that are open
	for {
		switch c := s.Peek(); c {
		case '{', '[':
			s.pos++
			if closer := c + 2; !s.consumes(closer) { // the closing bracket of both is the second character behind the opening one
				if s.depth+len(closers) >= maxDepth {
					return s.fail("nested too deeply")
				}
				closers = append(closers, closer)
				if closer == '}' {
					if err := s.key(); err != nil {
						return err
					}
				}
				continue
			}
		default:
			if err := s.scalar(c); err != nil {
				return err
			}
		}
		more := false
		for !more && len(closers) > 0 {
			closer := closers[len(closers)-1]
			switch s.Peek() {
			case closer:
				closers = closers[:len(closers)-1]
			case ',':
				more = true
			default:
				return s.fail("expected ',' or " + strconv.QuoteRune(rune(closer)))
			}
			s.pos++
			if more && closer == '}' {
				if err := s.key(); err != nil {
					return err
				}
			}
		}
		if !more {
			return nil
		}
	}
}

// key reads the key of a member, and the colon. It is not decoded: in managedFields nearly half of the keys hold escapes.
func (s *Scanner) key() error {
	if _, _, err := s.quoted(); err != nil {
		return err
	}
	return s.expect(':')
}

// scalar reads a value that is no object or array, and begins with c.
func (s *Scanner) scalar(c byte) error {
	switch c {
	case '"':
		_, _, err := s.quoted()
		return err
	case 't':
		return s.literal("true")
	case 'f':
		return s.literal("false")
	case 'n':
		return s.literal("null")
	default:
		return s.number()
	}
}

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

// consumes consumes c if it is next.
func (s *Scanner) consumes(c byte) bool {
	if s.Peek() != c {
		return false
	}
	s.pos++
	return true
}

func (s *Scanner) expect(c byte) error {
	if !s.consumes(c) {
		return s.fail("expected " + strconv.QuoteRune(rune(c)))
	}
	return nil
}

// Peek skips white space, and returns the next byte without reading it, or 0 at the end.
func (s *Scanner) Peek() byte {
	if s.pos >= len(s.data) || s.data[s.pos] <= ' ' {
		s.space()
	}
	return s.next()
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
	if rest := s.data[s.pos+1:]; len(rest) >= 1 {
		switch rest[0] {
		case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
			s.pos += 2
			return nil
		case 'u':
			if len(rest) >= 5 && isHex(rest[1:5]) {
				s.pos += 6
				return nil
			}
		}
	}
	return s.fail("unknown escape in a string")
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
