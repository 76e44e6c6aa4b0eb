package config

import (
	"reflect"

	"github.com/kubeferry/kubeferry/internal/fieldpath"
	"github.com/kubeferry/kubeferry/pipeline/shape"
)

// Transform is one change of what is sent: exactly one field is set.
type Transform struct {
	Remove []fieldpath.Path `yaml:"remove" doc:"paths to remove"`
	Keep   []fieldpath.Path `yaml:"keep" doc:"paths to keep. Everything else is removed"`
	Redact []fieldpath.Path `yaml:"redact" doc:"paths whose values become digests"`
	Set    Assignments      `yaml:"set" doc:"paths to write, each with a CEL expression"`
	Rename Moves            `yaml:"rename" doc:"paths to move, each with its new path"`
}

// Kind is the key of the field that is set.
func (t *Transform) Kind() string {
	switch {
	case t.Remove != nil:
		return "remove"
	case t.Keep != nil:
		return "keep"
	case t.Redact != nil:
		return "redact"
	case t.Set != nil:
		return "set"
	default:
		return "rename"
	}
}

// Assignments are the entries of a set, in the order of the file. Their values are worked out before the first is set.
type Assignments []Assignment

// Assignment is a value for a place.
type Assignment struct {
	shape.Assignment
	// key and text are the path and the expression as the file has them.
	key, text string
}

// Moves are the entries of a rename, in the order of the file.
type Moves []Move

// Move is an old place and a new one.
type Move struct {
	fieldpath.Move
	key string
}

// entryDecoder is a type that is written as a mapping whose keys have a meaning.
type entryDecoder interface {
	// entry decodes one entry, whose value is at path, and reports what it cannot decode.
	entry(d *decoder, e entry, path string)
}

var (
	_ entryDecoder = (*Assignments)(nil)
	_ entryDecoder = (*Moves)(nil)
)

func (a *Assignments) entry(d *decoder, e entry, path string) {
	assignment := Assignment{key: e.key}
	assignment.Path = d.keyPath(e, path)
	d.value(e.value, path, reflect.ValueOf(&assignment.text).Elem(), field{})
	*a = append(*a, assignment) // without a path too, so that its value is checked
}

func (m *Moves) entry(d *decoder, e entry, path string) {
	from := d.keyPath(e, path)
	var to fieldpath.Path
	d.value(e.value, path, reflect.ValueOf(&to).Elem(), field{})
	if from.Len() == 0 || to.Len() == 0 {
		d.faults.setBroken(path)
		return
	}
	move, err := fieldpath.NewMove(from, to)
	if err != nil {
		d.faults.addBroken(e.value, path, "cannot move: %v", err)
		return
	}
	*m = append(*m, Move{move, e.key})
}

// keyPath decodes the key of an entry, in which nothing expands. What is no path is reported, and becomes the zero path.
func (d *decoder) keyPath(e entry, path string) fieldpath.Path {
	parsed, err := fieldpath.Parse(e.key)
	if err != nil {
		d.faults.add(e.line, e.column, path, err.Error())
	}
	return parsed
}
