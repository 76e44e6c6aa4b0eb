// Package delta is kubeferry's vocabulary: what a change is, which object it is about, and how it is named.
//
// A [Delta] is one observed change of one object. Its [Object] is the JSON that the API server sent, decoded only
// when a caller needs that: reading the few metadata fields that kubeferry itself needs takes one pass over the
// bytes and builds no map.
//
// What a commit writes ([WatchChange], [LogChange], [Entry]) is here and not in package checkpoint, since source and
// pipeline make it, and may not import that.
//
// The package imports apimachinery only, so that every other package may import it.
package delta
