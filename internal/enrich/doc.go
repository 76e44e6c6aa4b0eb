// Package enrich knows the metadata of the objects that Events are about: their labels, annotations and owners.
//
// Nobody says beforehand which kinds that will be. The first question about a kind starts a watch of its metadata, and
// is answered with "not known", as is every question until the objects of the kind were read: an Event does not wait.
// What is kept is bounded in bytes and in kinds; what was not asked for the longest goes first, and comes back with the
// next change of its object.
package enrich
