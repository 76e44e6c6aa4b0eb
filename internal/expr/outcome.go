package expr

import (
	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
)

// outcome is what is certain of a result before there is an object.
type outcome int

const (
	open   outcome = iota // depends on the object
	always                // is true for every object
	never                 // is false for every object
	fails                 // has no result for any object
)

// outcomeOf evaluates the program for a type. The other variables count as unknown: "false && unknown" is false.
func outcomeOf(p cel.Program, changeType string) outcome {
	activation, err := cel.PartialVars(map[string]any{varType: changeType},
		cel.AttributePattern(varObject), cel.AttributePattern(varOldObject), cel.AttributePattern(varResource),
		cel.AttributePattern(varSnapshot), cel.AttributePattern(varInferred))
	if err != nil {
		return open
	}
	result, _, err := p.Eval(activation)
	switch {
	case err != nil:
		return fails
	case result == types.True:
		return always
	case result == types.False:
		return never
	default:
		return open
	}
}

// checkOutcome reports an expression that has no result for any object and a filter that passes none, and warns of a
// filter that passes all.
func checkOutcome(src source, kind Kind, p cel.Program) (faults, warnings []Fault) {
	seen := map[outcome]bool{}
	for _, t := range changeTypes() {
		seen[outcomeOf(p, t)] = true
	}
	start := src.start()
	switch {
	case seen[open]:
	case seen[fails] && len(seen) == 1:
		faults = append(faults, src.fault(start, "has no result, whatever the object is"))
	case kind != Filter || seen[always] && len(seen) > 1:
	case seen[always]:
		warnings = append(warnings, src.fault(start, "is always true: everything passes"))
	case seen[fails]:
		faults = append(faults, src.fault(start, "is false or has no result, whatever the object is"))
	default:
		faults = append(faults, src.fault(start, "is never true: nothing would pass"))
	}
	return faults, warnings
}
