package config

import (
	"errors"

	"github.com/kubeferry/kubeferry/internal/expr"
)

// expression compiles the expression at path and reports all its faults. It returns nil if it cannot be used.
func (v *validator) expression(path, text string, kind expr.Kind) *expr.Program {
	if !v.present(path) || v.faults.isBroken(path) {
		return nil
	}
	program, err := expr.Compile(text, kind)
	outside := v.text(path) == "" && text != ""
	var faults expr.Faults
	switch {
	case err == nil:
	case outside:
		v.fault(path, "is not a valid expression; what is wrong is not shown, because it came from outside the file")
		return nil
	case errors.As(err, &faults):
		for _, fault := range faults {
			v.fault(path, "%s%s", fault.Message, pointAt(text, fault.Offset))
		}
		return nil
	default:
		v.fault(path, "%v", err)
		return nil
	}
	if !outside {
		for _, warning := range program.Warnings() {
			v.warn(path, "%s%s", warning.Message, pointAt(text, warning.Offset))
		}
	}
	return program
}
