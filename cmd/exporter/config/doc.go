// Package config reads kubeferry's configuration file.
//
// # From file to Config
//
// [Load] runs a file through these steps; each adds its faults to one list, so that a user sees all of them at once:
//
//  1. YAML into a tree of nodes with their lines, aliases and merge keys resolved. yaml.v3 refuses duplicate keys, and
//     aliases that make a small file large. A file that is not YAML goes no further.
//  2. The tree is decoded into [Config], strictly and driven by the struct types: unknown keys, wrong types. ${NAME} and
//     ${file:/path} expand inside scalar values. What comes in is text: it is neither expanded again nor read as YAML,
//     and no message prints it.
//  3. Validation: references, selectors, globs, combinations, and what the sinks find in their own sections.
//
// Later steps do not report what follows from a fault of an earlier one.
//
// # Struct tags
//
// Sinks' configurations are decoded by the same rules as the types here. The tags are
//
//	yaml:"name"         the key; ",inline" for an embedded struct, "-" for a field that is not in the file
//	doc:"text"          the description in the JSON Schema
//	enum:"a|b|c"        the only values of a string, or of the strings in a list
//	required:"true"     the key must be there
//	min:"1" max:"100"   the bounds of a number, a duration or a size, as they would be written in the file; max needs a min
//
// Defaults are the values that a struct holds before it is decoded.
package config
