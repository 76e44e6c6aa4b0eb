//go:build !linux && !darwin

package checkpoint

func room(string) (bytes int64, ok bool) { return 0, false }
