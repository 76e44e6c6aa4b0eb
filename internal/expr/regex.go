package expr

import (
	"regexp"
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/interpreter"
)

// library has the functions of Kubernetes that cel-go does not have. A regular expression that is a constant is compiled once.
type library struct{}

// CompileOptions implements [cel.Library].
func (library) CompileOptions() []cel.EnvOption {
	return slices.Concat(quantityFunctions(), listFunctions(), regexFunctions())
}

// ProgramOptions implements [cel.Library].
func (library) ProgramOptions() []cel.ProgramOption {
	compiled := func(function string, f func(*regexp.Regexp, []ref.Val) ref.Val) *interpreter.RegexOptimization {
		return &interpreter.RegexOptimization{
			Function: function, RegexIndex: 1,
			Factory: func(call interpreter.InterpretableCall, pattern string) (interpreter.InterpretableCall, error) {
				re, err := regexp.Compile(pattern)
				if err != nil {
					return nil, err
				}
				run := func(args ...ref.Val) ref.Val { return f(re, args) }
				return interpreter.NewCall(call.ID(), call.Function(), call.OverloadID(), call.Args(), run), nil
			},
		}
	}
	return []cel.ProgramOption{cel.OptimizeRegex(compiled("find", find), compiled("findAll", findAll))}
}

// regexFunctions are those of Kubernetes' regex library (apiserver/pkg/cel/library/regex.go): find and findAll. matches is CEL's own.
func regexFunctions() []cel.EnvOption {
	two := []*cel.Type{cel.StringType, cel.StringType}
	three := append(two[:2:2], cel.IntType)
	texts := cel.ListType(cel.StringType)
	return []cel.EnvOption{
		cel.Function("find", cel.MemberOverload("string_find_string", two, cel.StringType, cel.FunctionBinding(patterned(find)))),
		cel.Function("findAll",
			cel.MemberOverload("string_find_all_string", two, texts, cel.FunctionBinding(patterned(findAll))),
			cel.MemberOverload("string_find_all_string_int", three, texts, cel.FunctionBinding(patterned(findAll)))),
	}
}

// patterned is f for a pattern that is no constant. A binding is called with the types of its overload only.
func patterned(f func(*regexp.Regexp, []ref.Val) ref.Val) func(...ref.Val) ref.Val {
	return func(args ...ref.Val) ref.Val {
		re, err := regexp.Compile(string(args[1].(types.String)))
		if err != nil {
			return types.WrapErr(err)
		}
		return f(re, args)
	}
}

func find(re *regexp.Regexp, args []ref.Val) ref.Val {
	text, ok := args[0].(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(args[0])
	}
	return types.String(re.FindString(string(text)))
}

func findAll(re *regexp.Regexp, args []ref.Val) ref.Val {
	text, ok := args[0].(types.String)
	if !ok {
		return types.MaybeNoSuchOverloadErr(args[0])
	}
	most := types.IntNegOne
	if len(args) == 3 {
		if most, ok = args[2].(types.Int); !ok {
			return types.MaybeNoSuchOverloadErr(args[2])
		}
	}
	return types.NewStringList(types.DefaultTypeAdapter, re.FindAllString(string(text), int(most)))
}
