package explain

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// change is an object to explain, and its version before if that is known.
type change struct {
	object, old *delta.Object
	notes       []string
}

// read reads the objects, and the versions before that belong to them.
func (x *explainer) read(path string, stdin io.Reader) ([]change, error) {
	objects, err := readManifest(path, stdin)
	if err != nil {
		return nil, err
	}
	if err := x.checkResource(objects); err != nil {
		return nil, err
	}
	var olds []*delta.Object
	if x.Old != "" {
		if x.Old == "-" && path == "-" {
			return nil, errors.New("--old and the object cannot both come from standard input")
		}
		if olds, err = readManifest(x.Old, stdin); err != nil {
			return nil, err
		}
	}
	changes := make([]change, len(objects))
	found := false
	for i, object := range objects {
		changes[i].object = object
		n := slices.IndexFunc(olds, func(old *delta.Object) bool { return sameObject(old, object) })
		switch {
		case n >= 0:
			changes[i].old = olds[n]
			found = true
		case olds != nil:
			changes[i].notes = append(changes[i].notes, "--old does not have it")
		}
	}
	if olds != nil && !found {
		return nil, fmt.Errorf("--old has %s, which is none of the objects", objectName(olds[0]))
	}
	return changes, nil
}

func sameObject(a, b *delta.Object) bool {
	return a.APIVersion() == b.APIVersion() && a.Kind() == b.Kind() && a.Namespace() == b.Namespace() && a.Name() == b.Name()
}

func objectName(o *delta.Object) string {
	name := o.Name()
	if name == "" {
		name = "without a name"
	}
	if o.Namespace() != "" {
		name = o.Namespace() + "/" + name
	}
	return o.Kind() + " " + name
}

// typeOf returns what happened to the object.
func (x *explainer) typeOf(c *change) delta.Type {
	switch {
	case x.Type != "":
		return delta.Type(x.Type)
	case c.old != nil:
		return delta.Modified
	default:
		return delta.Added
	}
}
