package expr

import (
	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Outcome is what can be said of a filter before it sees an object.
type Outcome int

// The outcomes.
const (
	// Open depends on the object.
	Open Outcome = iota
	// Always is true for every object.
	Always
	// Never is true for no object.
	Never
	// Fails has no result for any object.
	Fails
)

// Known are the variables that are known before there is an object.
type Known struct {
	// Type is empty if it is not known.
	Type string
	// Resource is nil if it is not known.
	Resource *schema.GroupVersionResource
}

// Outcome evaluates the expression with what is known. The rest counts as unknown: "known false && unknown" is false.
func (p *Program) Outcome(known Known) Outcome {
	outcome, _ := p.outcome(known)
	return outcome
}

// outcome also returns why an expression fails.
func (p *Program) outcome(known Known) (Outcome, error) {
	vars := map[string]any{}
	unknown := []*cel.AttributePatternType{
		cel.AttributePattern(varObject), cel.AttributePattern(varOldObject), cel.AttributePattern(varSnapshot), cel.AttributePattern(varInferred),
	}
	if known.Type != "" {
		vars[varType] = known.Type
	} else {
		unknown = append(unknown, cel.AttributePattern(varType))
	}
	if r := known.Resource; r != nil {
		vars[varResource] = map[string]string{"group": r.Group, "version": r.Version, "resource": r.Resource}
	} else {
		unknown = append(unknown, cel.AttributePattern(varResource))
	}
	activation, err := cel.PartialVars(vars, unknown...)
	if err != nil {
		return Open, nil
	}
	result, _, err := p.partial.Eval(activation)
	switch {
	case err != nil:
		return Fails, err
	case result == types.True:
		return Always, nil
	case result == types.False:
		return Never, nil
	default:
		return Open, nil
	}
}

// What cel-go estimates of an expression's cost before it runs says little here, because nothing is known of the size of an
// object; what costs too much without one is found by running it.

// constantFaults reports an expression that fails in any case and a filter that lets nothing pass, and warns of one that
// lets all pass.
func (p *Program) constantFaults() []Fault {
	start := p.source.start()
	if reason := p.constantReason(); reason != "" {
		return []Fault{p.source.fault(start, "%s", reason)}
	}
	outcome, err := p.overTypes()
	switch outcome {
	case Fails:
		if tooExpensive(err) {
			return []Fault{p.source.fault(start, "takes more than %d steps, whatever the object is", costLimit)}
		}
		return []Fault{p.source.fault(start, "has no result, whatever the object is")}
	case Never:
		switch {
		case p.kind == Filter && err != nil && tooExpensive(err):
			return []Fault{p.source.fault(start, "is false or takes more than %d steps, whatever the object is", costLimit)}
		case p.kind == Filter && err != nil:
			return []Fault{p.source.fault(start, "is false or has no result, whatever the object is")}
		case p.kind == Filter:
			return []Fault{p.source.fault(start, "is never true: nothing would pass")}
		}
	case Always:
		if p.kind == Filter {
			p.warnings = append(p.warnings, p.source.fault(start, "is always true: everything passes"))
		}
	}
	return nil
}

// constantReason says why the result of a [Value] that is the same for each object cannot be put into one.
func (p *Program) constantReason() string {
	if u := p.uses; p.kind != Value || u.Object || !u.ObjectOnly() || u.Resource {
		return ""
	}
	result, _, err := p.partial.Eval(map[string]any{})
	if err != nil {
		return ""
	}
	_, reason := plain(result)
	return reason
}

// overTypes is the outcome that all types have in common. Never with an error is the one of a filter that fails for some
// types, and is false for the others.
func (p *Program) overTypes() (Outcome, error) {
	var failed error
	seen := map[Outcome]bool{}
	for _, t := range deltaTypes() {
		outcome, err := p.outcome(Known{Type: t})
		if seen[outcome] = true; outcome == Fails {
			failed = err
		}
	}
	switch {
	case seen[Open], seen[Always] && len(seen) > 1:
		return Open, nil
	case seen[Always]:
		return Always, nil
	case seen[Never]:
		return Never, failed
	default:
		return Fails, failed
	}
}
