package source

import "slices"

// Audience says which takers a delta concerns.
type Audience struct {
	// Only lists those it is for; nil means all of them, and empty none.
	Only []string
	// Before lists those whose filters the version before passed; nil means all of them.
	Before []string
}

// MaxTakers is how many takers a source can have: each known object has a bit for each.
const MaxTakers = 64

// misses has the bits of the takers that are not among names; nil are all of them.
func misses(names, takers []string) (missed uint64) {
	if names == nil {
		return 0
	}
	for n, taker := range takers {
		if !slices.Contains(names, taker) {
			missed |= 1 << n
		}
	}
	return missed
}

// passing returns the takers that were not missed; nil are all of them.
func passing(missed uint64, takers []string) []string {
	if missed == 0 {
		return nil
	}
	names := make([]string, 0, len(takers))
	for n, taker := range takers {
		if missed&(1<<n) == 0 {
			names = append(names, taker)
		}
	}
	return names
}

// remap makes bits for the takers of another time those of today's. Who was not there then was told of nothing. An older
// state says nothing of takers (nil): then everybody was told of everything.
func remap(missed uint64, then, now []string) (remapped uint64) {
	if then == nil {
		return 0
	}
	for n, taker := range now {
		if i := slices.Index(then, taker); i < 0 || missed&(1<<i) != 0 {
			remapped |= 1 << n
		}
	}
	return remapped
}

// merge returns who was missed when only some takers were asked: for the others it is as before.
func merge(takers []string, audience Audience, passed []string) uint64 {
	missed := misses(passed, takers)
	if audience.Only == nil {
		return missed
	}
	before := misses(audience.Before, takers)
	for n, taker := range takers {
		if bit := uint64(1) << n; !slices.Contains(audience.Only, taker) {
			missed = missed&^bit | before&bit
		}
	}
	return missed
}
