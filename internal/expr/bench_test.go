package expr

import (
	"context"
	"testing"
)

// BenchmarkEval is one evaluation on a decoded object.
func BenchmarkEval(b *testing.B) {
	in := &input{object: object(b, deployment), typ: "MODIFIED"}
	for name, text := range map[string]string{
		"type":     `type == "MODIFIED"`,
		"identity": `object.metadata.namespace != "sandbox"`,
		"labels":   `has(object.metadata.labels) && "app" in object.metadata.labels && object.metadata.labels.app == "web"`,
		"optional": `object.?metadata.?labels.?app.orValue("") == "web"`,
		"exists":   `object.spec.template.spec.containers.exists(c, c.image.endsWith(":latest"))`,
		"regex":    `object.metadata.name.matches("^w.*b$")`,
		"quantity": `quantity(object.spec.template.spec.containers[0].resources.limits.memory).isGreaterThan(quantity("1Gi"))`,
		"resource": `resource.resource == "deployments"`,
		"absent":   `object.metadata.annotations.team == "x"`,
	} {
		p := compile(b, text, Filter)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				in.asked = in.asked[:0]
				_, _ = p.Pass(context.Background(), in)
			}
		})
		if name == "identity" {
			b.Run("identity, not decoded", func(b *testing.B) {
				b.ReportAllocs()
				in := identified{in}
				for b.Loop() {
					_, _ = p.Pass(context.Background(), in)
				}
			})
		}
	}
}

// BenchmarkCostLimit is what the most expensive evaluation takes.
func BenchmarkCostLimit(b *testing.B) {
	p := compile(b, `lists.range(size(object.items)).all(x, lists.range(size(object.items)).all(y, x + y >= 0))`, Filter)
	in := &input{object: map[string]any{"items": make([]any, 2000)}}
	for b.Loop() {
		_, _ = p.Pass(context.Background(), in)
	}
}

func BenchmarkCompile(b *testing.B) {
	for b.Loop() {
		_ = compile(b, `has(object.metadata.labels) && object.metadata.labels.app == "web"`, Filter)
	}
}
