package checkpoint

// Forget puts the sizes in memory back, as after a commit that failed when all of it was on disk.
func Forget(s *Store, sizes map[string]LogSize) { s.sizes = sizes }
