package expr

import (
	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/ext"
)

// The names of the variables.
const (
	varObject    = "object"
	varOldObject = "oldObject"
	varType      = "type"
	varResource  = "resource"
	varSnapshot  = "snapshot"
	varInferred  = "inferred"
	varChangedBy = "changedBy"

	// Those of a [Body] only.
	varID       = "id"
	varSequence = "sequence"
	varCluster  = "cluster"
	varTime     = "time"
	varNotice   = "notice"
)

// variables returns the variables of a kind of expression, with their types.
func variables(kind Kind) map[string]*cel.Type {
	types := map[string]*cel.Type{
		varObject:    cel.DynType,
		varOldObject: cel.DynType,
		varType:      cel.StringType,
		varResource:  cel.MapType(cel.StringType, cel.StringType),
		varSnapshot:  cel.BoolType,
		varInferred:  cel.BoolType,
		varChangedBy: cel.ListType(cel.MapType(cel.StringType, cel.StringType)),
	}
	if kind == Body {
		types[varID], types[varSequence], types[varCluster] = cel.StringType, cel.StringType, cel.StringType
		types[varTime], types[varNotice] = cel.TimestampType, cel.DynType
	}
	return types
}

// costLimit bounds one evaluation, in CEL's units of about one step. It is what Kubernetes grants an admission policy's
// expression (k8s.io/apiserver/pkg/apis/cel, PerCallLimit), so that what works there works here: a pass over 10,000 list
// items, and not one pass for each pair of them. Measured, the limit is reached in 1 to 100 ms: see cost.go.
const costLimit = 1_000_000

// BriefLimit limits an evaluation for a [Metered] input that is to be brief, in CEL's units as costLimit. It allows about 1 ms, which is
// many times what conditions on usual objects take.
const BriefLimit = 10_000

// maxSource is the most characters of an expression; the longest that people write have hundreds.
const maxSource = 20_000

// maxNesting is how deep brackets and the like may be nested. The time of the type check grows with its third power: lists
// in lists take 20 ms at this depth and 2 s at cel-go's own limit, 250.
const maxNesting = 50

// newEnv makes the environment that expressions are compiled in. It takes about a millisecond.
//
// Kubernetes' own functions are in k8s.io/apiserver/pkg/cel/library. It is not used. Up to v0.37 it imports github.com/google/cel-go, a
// module path that cel-go left in v0.32 and that gets no fixes any more. It makes the binary 7.2 MB larger, where cel-go alone makes it
// 4.3 MB. Most of its functions are in cel-go's ext by now: strings, lists, sets, math, ip, cidr. This package has, under Kubernetes' names,
// quantities, find and findAll, and those functions of lists that ext lacks. Not there: url, format, semver, authorizer.
func newEnv(kind Kind, options ...cel.EnvOption) (*cel.Env, error) {
	for name, t := range variables(kind) {
		options = append(options, cel.Variable(name, t))
	}
	return cel.NewEnv(append(options,
		// As in Kubernetes (k8s.io/apiserver/pkg/cel/environment/base.go). Versions are pinned so that an expression means
		// the same after an upgrade of cel-go.
		cel.DefaultUTCTimeZone(true),
		cel.CrossTypeNumericComparisons(true),
		cel.OptionalTypes(cel.OptionalTypesVersion(4)),
		ext.Strings(ext.StringsVersion(5)),
		ext.Lists(ext.ListsVersion(5)),
		ext.Sets(ext.SetsVersion(1)),
		ext.Math(ext.MathVersion(3)),
		ext.Network(ext.NetworkVersion(0)),
		ext.Bindings(ext.BindingsVersion(0)),
		ext.TwoVarComprehensions(ext.TwoVarComprehensionsVersion(0)),
		cel.Lib(library{}),

		cel.ParserExpressionSizeLimit(maxSource),
		cel.ParserRecursionLimit(maxNesting),
	)...)
}
