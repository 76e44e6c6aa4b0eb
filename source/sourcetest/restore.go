package sourcetest

import "slices"

// This file restores the server from a backup, as an operator restores etcd.

// RollBack goes back to an earlier version, as a restored backup does: what was written since never happened.
func (s *Server) RollBack(version int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version, s.floor, s.states = version, min(s.floor, version), min(s.states, version)
	s.history = slices.DeleteFunc(s.history, func(c Change) bool { return c.Version > version })
}

// Restore goes back to an earlier version, and raises the server's, as a restore of etcd with --bump-revision and --mark-compacted does.
func (s *Server) Restore(version, by int) {
	s.RollBack(version)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version += by
	s.floor, s.states = s.version, s.version
}
