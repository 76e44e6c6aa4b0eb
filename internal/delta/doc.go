// Package delta has the types that all packages share: a change, the object that it is about, and its id.
//
// A [Delta] is one observed change of one object. Its [Object] is the JSON that the API server sent. It is decoded
// only when a caller needs its values: one pass over the bytes reads the few metadata fields that kubeferry itself
// needs, and builds no map.
//
// The types of which a commit consists ([WatchChange], [LogChange], [Entry]) are here and not in package checkpoint,
// because source and pipeline make them, and may not import checkpoint.
//
// Every other package may import this one. It imports only apimachinery, what apimachinery imports, and jsonscan.
package delta
