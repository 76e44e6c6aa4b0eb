package expr

import "slices"

// Uses are the variables that an expression reads.
type Uses struct {
	Object, OldObject, Type, Resource, Snapshot, Inferred bool
	// Identity is set if all that the expression reads of object are fields of [Identity], so that it can be evaluated
	// without decoding the object.
	Identity bool
}

// ObjectOnly reports whether the result depends on nothing but one version of the object and its resource: it
// selects objects, not changes of them.
func (u Uses) ObjectOnly() bool { return !u.OldObject && !u.Type && !u.Snapshot && !u.Inferred }

// Uses returns the variables that the expression reads.
func (p *Program) Uses() Uses { return p.uses }

func usesOf(reads []Read) Uses {
	var uses Uses
	decoded := false
	for _, r := range reads {
		switch r.variable {
		case varObject:
			uses.Object = true
			decoded = decoded || !slices.Contains(identityPlaces(), r.String())
		case varOldObject:
			uses.OldObject = true
		case varType:
			uses.Type = true
		case varResource:
			uses.Resource = true
		case varSnapshot:
			uses.Snapshot = true
		case varInferred:
			uses.Inferred = true
		}
	}
	uses.Identity = uses.Object && !decoded
	return uses
}

// identityPlaces are what [Identity.object] has.
func identityPlaces() []string {
	return []string{
		"object.apiVersion", "object.kind",
		"object.metadata.name", "object.metadata.namespace", "object.metadata.uid", "object.metadata.resourceVersion",
	}
}

// object is an object with the fields of the identity that are not empty.
func (id Identity) object() map[string]any {
	metadata := make(map[string]string, 4)
	object := map[string]any{"metadata": metadata}
	if id.APIVersion != "" {
		object["apiVersion"] = id.APIVersion
	}
	if id.Kind != "" {
		object["kind"] = id.Kind
	}
	for _, field := range [][2]string{
		{"name", id.Name}, {"namespace", id.Namespace}, {"uid", id.UID}, {"resourceVersion", id.ResourceVersion},
	} {
		if field[1] != "" {
			metadata[field[0]] = field[1]
		}
	}
	return object
}
