package shape

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kubeferry/kubeferry/internal/expr"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// Whoever makes many changes that are expensive in an expression has them stopped early, and no one else: no other namespace, nor
// what is cheap in his own.
func TestExpensiveChangesOfANamespace(t *testing.T) {
	pairs := `object.pad.split("").all(x, object.pad.split("").all(y, x == y))`
	value, err := expr.Compile(pairs, expr.Value)
	if err != nil {
		t.Fatal(err)
	}
	path, err := fieldpath.Parse("metadata.labels.same")
	if err != nil {
		t.Fatal(err)
	}
	for name, adjust := range map[string]func(*Options){
		"filter":    func(o *Options) { o.Filters = []Filter{exprFilter(t, pairs, OnErrorDrop)} },
		"transform": func(o *Options) { o.Transforms = []Transform{SetTransform{{Path: path, Value: value}}} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := start(t, adjust)
				version := 0
				// take returns whether the expression had a result, and otherwise whether it was stopped early.
				take := func(namespace string, size int) (result, early bool) {
					t.Helper()
					version++
					err := p.Shape(context.Background(), padded(t, namespace, fmt.Sprint("o-", version), version, size), true).Err
					return err == nil, err != nil && strings.Contains(err.Error(), "more than 10000 steps")
				}
				const cheap, medium, expensive = 10, 100, 5000
				for n := range 60 {
					result, early := take("tenant", expensive)
					if result || early != (n >= maxSteps/1_000_000) {
						t.Fatalf("change %d: result %t, stopped early %t", n, result, early)
					}
				}
				if result, _ := take("tenant", cheap); !result {
					t.Error("a cheap change of the tenant has no result")
				}
				if result, _ := take("shop", medium); !result {
					t.Error("a change of another namespace has no result")
				}
				time.Sleep(maxSteps / stepsPerSecond * time.Second)
				if result, _ := take("tenant", medium); !result {
					t.Error("a change of the tenant has no result later")
				}
				time.Sleep(time.Second)
				take("other", medium)
				if n := len(p.steps.spent); n != 1 {
					t.Errorf("%d namespaces are known, although two have all that they may spend", n)
				}
			})
		})
	}
}

// However slow the machine is, a namespace whose evaluations follow one another uses its budget up.
func TestStepBudgetOfASlowMachine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const steps = 1_000_000
		var b stepBudget
		for n := range 30 {
			began := time.Now()
			if got, want := b.exhausted("tenant", began), n >= maxSteps/steps; got != want {
				t.Fatalf("evaluation %d: exhausted %t, want %t", n, got, want)
			}
			time.Sleep(5 * time.Second)
			b.spend("tenant", steps, began)
		}
		time.Sleep(30 * steps / stepsPerSecond * time.Second)
		if b.exhausted("tenant", time.Now()) {
			t.Error("nothing was given back")
		}
	})
}
