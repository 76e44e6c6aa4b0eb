package explain

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// change is an object to explain, and its previous version if that is known.
type change struct {
	object, old *delta.Object
}

// read reads the objects, and the previous versions that belong to them.
func (x *explainer) read(path string, stdin io.Reader) ([]change, error) {
	if x.Old == "-" && path == "-" {
		return nil, errors.New("--old and the object cannot both come from standard input")
	}
	objects, err := readManifest(path, stdin)
	if err != nil {
		return nil, err
	}
	var olds []*delta.Object
	if x.Old != "" {
		if olds, err = readManifest(x.Old, stdin); err != nil {
			return nil, err
		}
	}
	changes := make([]change, len(objects))
	found := false
	for i, object := range objects {
		if err := x.checkResource(object); err != nil {
			return nil, err
		}
		changes[i].object = object
		if n := slices.IndexFunc(olds, func(old *delta.Object) bool { return sameObject(old, object) }); n >= 0 {
			changes[i].old, found = olds[n], true
		}
	}
	if olds != nil && !found {
		return nil, fmt.Errorf("--old has %s, which is not among the objects", objectName(olds[0]))
	}
	return changes, nil
}

func sameObject(a, b *delta.Object) bool {
	return a.APIVersion() == b.APIVersion() && objectName(a) == objectName(b)
}

// objectName returns kind, namespace and name: "Pod shop/web".
func objectName(o *delta.Object) string {
	if o.Namespace() == "" {
		return o.Kind() + " " + o.Name()
	}
	return o.Kind() + " " + o.Namespace() + "/" + o.Name()
}

// delta returns the change as a source reports it.
func (x *explainer) delta(c change) *delta.Delta {
	d := &delta.Delta{Type: delta.Added, Resource: x.resourceOf(c.object), Watch: "explain", Object: c.object, Observed: x.Now()}
	if by := delta.Managers(c.object.StoredChangedBy()); len(by) > 0 && !by[0].Time.IsZero() {
		d.Observed = by[0].Time // a run would have seen the change then
	}
	d.Sequence, _ = strconv.ParseUint(c.object.ResourceVersion(), 10, 64) // a run adds its offset
	switch {
	case x.Type != "":
		d.Type = delta.Type(x.Type)
	case c.old != nil:
		d.Type = delta.Modified
	}
	d.Snapshot = x.Snapshot && d.Type == delta.Added
	if d.Type == delta.Modified {
		d.Old = c.old
	}
	return d
}
