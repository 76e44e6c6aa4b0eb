package app

// FailureError is an error at run time. Every other error is one of usage: flags, arguments, configuration.
type FailureError struct{ Err error }

func (e *FailureError) Error() string { return "exporter: " + e.Err.Error() }
func (e *FailureError) Unwrap() error { return e.Err }
