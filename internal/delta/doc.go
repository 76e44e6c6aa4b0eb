// Package delta has the types that all packages share: a change, the object that it is about, and its id.
//
// A [Delta] is one observed change of one object. Its [Object] is the JSON that the API server sent, decoded only
// when a caller needs that: reading the few metadata fields that kubeferry itself needs takes one pass over the
// bytes and builds no map.
//
// What a commit writes ([WatchChange], [LogChange], [Entry]) is here and not in package checkpoint, since source and
// pipeline make it, and may not import that.
//
// The package imports apimachinery, and what that imports, only, so that every other package may import it.
package delta
