package expr

// Uses says which variables an expression reads.
type Uses struct {
	Object, OldObject, Type, Resource, Snapshot, Inferred bool
	// Identity is set if all that the expression reads of object are fields of [Identity], so that it can be evaluated
	// without decoding the object.
	Identity bool
}

// ObjectOnly reports whether the result depends on nothing but one version of the object and its resource: it says
// which objects are meant, not which changes of them.
func (u Uses) ObjectOnly() bool { return !u.OldObject && !u.Type && !u.Snapshot && !u.Inferred }

// Uses says which variables the expression reads.
func (p *Program) Uses() Uses { return p.uses }

func usesOf(reads []Read) Uses {
	var uses Uses
	decoded := false
	for _, r := range reads {
		switch r.variable {
		case varObject:
			_, known := Identity{}.field(r)
			uses.Object = true
			decoded = decoded || !known
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

// field returns what a read of object finds, and whether that is a part of the identity.
func (id Identity) field(r Read) (value string, ok bool) {
	switch path := [2]string{r.name(0), r.name(1)}; {
	case len(r.steps) == 1 && path[0] == "apiVersion":
		return id.APIVersion, true
	case len(r.steps) == 1 && path[0] == "kind":
		return id.Kind, true
	case len(r.steps) != 2 || path[0] != "metadata":
		return "", false
	case path[1] == "namespace":
		return id.Namespace, true
	case path[1] == "name":
		return id.Name, true
	case path[1] == "uid":
		return id.UID, true
	case path[1] == "resourceVersion":
		return id.ResourceVersion, true
	default:
		return "", false
	}
}

// object is an object that has only those fields of the identity that are read.
func (id Identity) object(reads []Read) map[string]any {
	object, metadata := map[string]any{}, map[string]string{}
	for _, r := range reads {
		value, ok := id.field(r)
		switch {
		case !ok || value == "" || r.variable != varObject:
		case len(r.steps) == 1:
			object[r.name(0)] = value
		default:
			metadata[r.name(1)] = value
		}
	}
	object["metadata"] = metadata
	return object
}
