package expr

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"cel.dev/cel-go/common/types"
	"pgregory.net/rapid"
)

// FuzzCompile: whatever the text is, it compiles or is refused; what compiles gives the same for an input
// that is read variable by variable as for the whole object in a map, and no error quotes the object.
func FuzzCompile(f *testing.F) {
	for _, text := range []string{
		`type == "ADDED" && object.metadata.name != "web"`, `has(object.metadata.labels) && object.metadata.labels.app == "web"`,
		`object.spec.template.spec.containers.exists(c, c.image.endsWith(":latest"))`, `object.?metadata.?labels["a"].orValue("")`,
		`quantity("1Gi").isGreaterThan(quantity(object.spec.x))`, `"a1".findAll("[0-9]") == [object.kind]`, `object.a = 5`, `“x”`, `"\q`,
		"object.x ==\n  objct.y", `{"a": [1, 2.5, null]}`, `oldObject == null ? 1 : size(oldObject)`, `[3, 1].sum() + math.greatest(1, 2)`,
		`cel.bind(x, object, x.metadata.labels.transformMap(k, v, k + v))`, `object.metadata.name.matches("^(a|b)*$")`, `resource.kind`, `a.b.c(`,
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, kind := range []Kind{Filter, Value} {
			p, err := Compile(text, kind)
			if err != nil {
				if p != nil {
					t.Fatalf("%q: got %v and %v", text, p, err)
				}
				continue
			}
			compareInputs(t, p)
		}
	})
}

// compareInputs evaluates an expression for an input that is read variable by variable, and for variables in a map.
func compareInputs(t interface{ Errorf(string, ...any) }, p *Program) {
	const value = "q8Zu3wXk"
	object := map[string]any{
		"apiVersion": "v1", "kind": "Pod", "secret": value,
		"metadata": map[string]any{"name": "web", "namespace": "shop", "uid": "u", "resourceVersion": "7", "labels": map[string]any{"app": value}},
		"spec":     map[string]any{"replicas": int64(3), "list": []any{value, int64(1), nil}},
	}
	old := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "web"}}
	in := identified{&input{object: object, old: old, typ: "MODIFIED", snapshot: true}}
	got, gotErr := p.Eval(context.Background(), in)
	if gotErr != nil && strings.Contains(gotErr.Error(), value) && !strings.Contains(p.String(), value) {
		t.Errorf("%q: the error quotes the object: %v", p, gotErr)
	}
	r := in.Resource()
	result, _, err := p.program.Eval(map[string]any{
		varObject: object, varOldObject: old, varType: in.typ, varSnapshot: true, varInferred: false,
		varResource: map[string]string{"group": r.Group, "version": r.Version, "resource": r.Resource},
	})
	var want any
	wantPass, ok := result.(types.Bool)
	if pass, passErr := p.Pass(context.Background(), in); pass != bool(wantPass) || (passErr == nil) != (ok && err == nil) {
		t.Errorf("%q: Pass is %v, %v, with the whole object in a map %v, %v", p, pass, passErr, result, err)
	}
	if err == nil {
		var reason string
		if want, reason = plain(result); reason != "" {
			err = errors.New(reason)
		}
	}
	if !reflect.DeepEqual(got, want) || (gotErr == nil) != (err == nil) {
		t.Errorf("%q: got %v, %v, with the whole object in a map %v, %v", p, got, gotErr, want, err)
	}
}

// TestLazyIsFull is the same for expressions that are put together at random out of parts that work.
func TestLazyIsFull(t *testing.T) {
	texts := rapid.SampledFrom([]string{
		`"web"`, `"shop"`, `""`, `type`, `resource.resource`, `object.kind`, `object.apiVersion`, `object.metadata.name`, `object.metadata.namespace`,
		`object.metadata.uid`, `object.metadata.resourceVersion`, `object.metadata.labels.app`, `object.metadata.generateName`, `oldObject.metadata.name`,
		`object.?metadata.?name.orValue("x")`, `object["kind"]`, `oldObject.metadata.namespace`, `.object.metadata.name`,
	})
	var condition func(depth int) *rapid.Generator[string]
	condition = func(depth int) *rapid.Generator[string] {
		return rapid.Custom(func(t *rapid.T) string {
			switch n := rapid.IntRange(0, 9).Draw(t, "form"); {
			case depth == 0 || n < 2:
				return texts.Draw(t, "a") + rapid.SampledFrom([]string{" == ", " != ", " < "}).Draw(t, "op") + texts.Draw(t, "b")
			case n == 2:
				return rapid.SampledFrom([]string{
					"snapshot", "inferred", "has(object.metadata.namespace)", "has(object.metadata.labels)", "has(object.status)", "oldObject == null", "object.spec.replicas > 2",
				}).Draw(t, "atom")
			case n == 3:
				return "!(" + condition(depth-1).Draw(t, "x") + ")"
			case n == 4:
				return texts.Draw(t, "a") + ".startsWith(" + texts.Draw(t, "b") + ")"
			case n == 5:
				return "[" + texts.Draw(t, "a") + "].exists(x, x == " + texts.Draw(t, "b") + " || " + condition(depth-1).Draw(t, "x") + ")"
			case n == 6:
				return "(" + condition(depth-1).Draw(t, "x") + " ? " + condition(depth-1).Draw(t, "y") + " : " + condition(depth-1).Draw(t, "z") + ")"
			default:
				return "(" + condition(depth-1).Draw(t, "x") + rapid.SampledFrom([]string{" && ", " || "}).Draw(t, "op") + condition(depth-1).Draw(t, "y") + ")"
			}
		})
	}
	compiled := 0
	rapid.Check(t, func(t *rapid.T) {
		text := condition(3).Draw(t, "expression")
		p, err := Compile(text, Filter)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		compiled++
		compareInputs(t, p)
	})
	if compiled == 0 {
		t.Error("nothing compiled")
	}
}
