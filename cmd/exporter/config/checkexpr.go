package config

import "github.com/kubeferry/kubeferry/internal/expr"

// expression compiles the expression at path and reports its faults. It returns nil if it cannot be used.
func (v *validator) expression(path, text string, kind expr.Kind) *expr.Program {
	if !v.present(path) || v.faults.isBroken(path) {
		return nil
	}
	program, err := expr.Compile(text, kind)
	switch {
	case err == nil:
	case v.decode.at(path).expanded:
		v.fault(path, "is not a valid expression; what is wrong is not shown, because it came from outside the file")
	default:
		v.fault(path, "%v", err)
	}
	return program
}
