// Package fieldpath has paths, which name places in a decoded Kubernetes object. It finds these places, and changes the values there.
//
// # Notation
//
//	spec.template.spec                     a name: the member of a map
//	metadata.labels["app.kubernetes.io/name"]
//	                                       a quoted name: any text, with the escapes of JSON; single quotes are allowed too
//	spec.containers[0]                     an item of a list, counted from 0
//	spec.containers[*].env[*].value        every item of a list, or every value of a map
//
// A name that consists of letters, digits, "_" and "-", and not of digits alone, needs no quotes.
//
// # Matches
//
// A path matches the places in an object that it names. It has no match if they do not exist. Without [*] it has at most one, and with [*]
// any number. A member with the value null exists. A step of the wrong kind (a name at a list, an index at a map) matches nothing.
//
// # Decoded and raw
//
// Decoded objects consist of map[string]any, []any, string, bool, nil, int64 and float64, as apimachinery decodes JSON. So the numbers 1 and
// 1.0 are different. [Set.DifferJSON] reads the JSON itself.
package fieldpath
