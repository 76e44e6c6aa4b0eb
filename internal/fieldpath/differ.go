package fieldpath

import (
	"bytes"
	"errors"
	"reflect"

	utiljson "k8s.io/apimachinery/pkg/util/json"

	"github.com/kubeferry/kubeferry/internal/jsonscan"
)

// DifferJSON compares two versions of an object. It reports whether any path of the set has other matches, or other values in them. Items of
// lists are compared by their index. It decodes only matches whose bytes differ.
//
// Both must be valid JSON: DifferJSON does not check everything, and may return no error for JSON that is malformed. If a map has two members
// of one name, which RFC 8259 leaves undefined, either may be compared. The error contains no value of the object.
func (s *Set) DifferJSON(before, after []byte) (bool, error) {
	return differ(before, after, []*node{&s.root}, s.root.leaf)
}

// differ compares what the nodes lead to in two values, or all of the values if leaf is set. A value that is not there is
// nil.
func differ(before, after []byte, nodes []*node, leaf bool) (bool, error) {
	switch {
	case bytes.Equal(before, after):
		return false, nil
	case leaf:
		return differDecoded(before, after)
	}
	olds, err := childrenOf(before, nodes)
	if err != nil {
		return false, err
	}
	news, err := childrenOf(after, nodes)
	if err != nil {
		return false, err
	}
	for step := range news {
		if _, ok := olds[step]; !ok {
			olds[step] = nil
		}
	}
	for step := range olds {
		next, leaf := follow(nodes, step)
		if differs, err := differ(olds[step], news[step], next, leaf); err != nil || differs {
			return differs, err
		}
	}
	return false, nil
}

// errFound ends a scan that has found all it looks for.
var errFound = errors.New("found")

// childrenOf returns those members or items of a value that the nodes lead to.
func childrenOf(value []byte, nodes []*node) (map[Step][]byte, error) {
	children := map[Step][]byte{}
	most := mostChildren(nodes)
	s := jsonscan.NewScanner(value)
	child := func(step Step) error {
		if next, leaf := follow(nodes, step); len(next) == 0 && !leaf {
			return s.Skip()
		}
		value, err := s.Value()
		if children[step] = value; len(children) == most && err == nil {
			return errFound
		}
		return err
	}
	var err error
	switch s.Peek() {
	case '{':
		err = s.Object(func(key []byte) error { return child(Step{Kind: Name, Name: string(key)}) })
	case '[':
		index := -1
		err = s.Array(func() error {
			index++
			return child(Step{Kind: Index, Index: index})
		})
	}
	if errors.Is(err, errFound) {
		err = nil
	}
	return children, err
}

// mostChildren is how many children the nodes lead to at most, -1 if there is no limit.
func mostChildren(nodes []*node) int {
	most := 0
	for _, n := range nodes {
		if n.steps[Step{Kind: Every}] != nil {
			return -1
		}
		most += len(n.steps)
	}
	return most
}

// differDecoded compares two values that are written differently: their numbers, escapes or order may be.
func differDecoded(before, after []byte) (bool, error) {
	if before == nil || after == nil {
		return true, nil
	}
	var old, current any
	if utiljson.Unmarshal(before, &old) != nil || utiljson.Unmarshal(after, &current) != nil {
		return false, errors.New("malformed JSON") // the error itself would quote the object
	}
	return !reflect.DeepEqual(old, current), nil
}
