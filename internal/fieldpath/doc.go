// Package fieldpath names places in a decoded Kubernetes object, finds them and changes what is there.
//
// # Notation
//
//	spec.template.spec                     a name: the member of a map
//	metadata.labels["app.kubernetes.io/name"]
//	                                       a quoted name: any text, with the escapes of JSON; 'single quotes' will do
//	spec.containers[0]                     an item of a list, counted from 0
//	spec.containers[*].env[*].value        every item of a list, or every value of a map
//
// A name that consists of letters, digits, "_" and "-", and not of digits alone, needs no quotes.
//
// # Matches
//
// A path matches the places that exist under it: none, one, or with [*] any number. A member that holds null exists. A
// step that does not fit what is there (a name at a list, an index at a map) matches nothing.
//
// # Decoded and raw
//
// Objects are what encoding/json and apimachinery make of JSON: map[string]any, []any, string, bool, nil, int64 and
// float64. [Set.DifferJSON] answers from the JSON itself, without decoding it. The
// whole number 1 and the number 1.0 differ.
package fieldpath
