package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/ext"
)

const (
	// costLimit bounds what an expression may cost, in units of CEL: some tens of milliseconds.
	costLimit = 1_000_000
	// maxJudged bounds the answer that expressions see. A longer one is text without its end.
	maxJudged = 1 << 20
)

// condition is a CEL expression over an answer.
type condition struct{ program cel.Program }

// newCondition compiles an expression that is true or false; nil for none.
func newCondition(text string) (*condition, error) {
	if text == "" {
		return nil, nil
	}
	env, err := cel.NewEnv(
		cel.Variable("status", cel.IntType),
		cel.Variable("headers", cel.MapType(cel.StringType, cel.StringType)),
		cel.Variable("body", cel.DynType),
		cel.OptionalTypes(), ext.Strings(),
	)
	if err != nil {
		return nil, err
	}
	checked, issues := env.Compile(text)
	if err := issues.Err(); err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), "<input>", "expression"))
	}
	if kind := checked.OutputType(); !kind.IsExactType(cel.BoolType) && !kind.IsExactType(cel.DynType) {
		return nil, fmt.Errorf("is %s, and must be true or false", kind)
	}
	program, err := env.Program(checked, cel.CostLimit(costLimit), cel.InterruptCheckFrequency(100))
	if err != nil {
		return nil, err
	}
	return &condition{program}, nil
}

// holds returns whether the expression is true of an answer. It returns an error if the expression fails, because the body lacks a member for
// example.
func (c *condition) holds(ctx context.Context, answer map[string]any) (bool, error) {
	result, _, err := c.program.ContextEval(ctx, answer)
	if err != nil {
		return false, err
	}
	holds, ok := result.Value().(bool)
	if !ok {
		return false, fmt.Errorf("its result is %s, and must be true or false", result.Type().TypeName())
	}
	return holds, nil
}

// answerOf returns what expressions see: names of headers are lower case, and a body that is JSON is decoded, else it is text.
func answerOf(resp *http.Response, body []byte) map[string]any {
	headers := make(map[string]string, len(resp.Header))
	for name := range resp.Header {
		headers[strings.ToLower(name)] = resp.Header.Get(name)
	}
	var decoded any
	if json.Unmarshal(body, &decoded) != nil {
		decoded = string(body)
	}
	return map[string]any{"status": resp.StatusCode, "headers": headers, "body": decoded}
}
