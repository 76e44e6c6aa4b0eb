package expr

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	utiljson "k8s.io/apimachinery/pkg/util/json"
)

// input is an Input of maps that records which of them are read.
type input struct {
	object, old        map[string]any
	typ                string
	snapshot, inferred bool
	changedBy          []map[string]string
	err                error
	asked              []string
}

func (i *input) Object() (map[string]any, error) {
	i.asked = append(i.asked, "object")
	return i.object, i.err
}

func (i *input) OldObject() (map[string]any, error) {
	i.asked = append(i.asked, "oldObject")
	return i.old, i.err
}
func (i *input) Type() string { return i.typ }
func (i *input) Resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}
}
func (i *input) Snapshot() bool                 { return i.snapshot }
func (i *input) Inferred() bool                 { return i.inferred }
func (i *input) ChangedBy() []map[string]string { return i.changedBy }

// identified is an input that also has the identity of its object.
type identified struct{ *input }

func (i identified) Identity() Identity {
	text := func(m map[string]any, key string) string { s, _ := m[key].(string); return s }
	metadata, _ := i.object["metadata"].(map[string]any)
	return Identity{
		APIVersion: text(i.object, "apiVersion"), Kind: text(i.object, "kind"),
		Namespace: text(metadata, "namespace"), Name: text(metadata, "name"),
		UID: text(metadata, "uid"), ResourceVersion: text(metadata, "resourceVersion"),
	}
}

const deployment = `{"apiVersion":"apps/v1","kind":"Deployment",
 "metadata":{"name":"web","namespace":"shop","uid":"4f0c","resourceVersion":"235","generation":7,
  "creationTimestamp":"2026-11-01T10:00:00Z","labels":{"app":"web","app.kubernetes.io/name":"shop"}},
 "spec":{"replicas":3,"ratio":0.5,"paused":false,"template":{"spec":{"containers":[
  {"name":"web","image":"registry.example.com/web:1.2","resources":{"limits":{"memory":"512Mi","cpu":"500m"}}},
  {"name":"log","image":"docker.io/log:latest","args":["-v","5"],"ip":"10.1.2.3"}]}}},
 "status":{"readyReplicas":2,"note":null}}`

func object(t testing.TB, text string) map[string]any {
	t.Helper()
	var m map[string]any
	if err := utiljson.Unmarshal([]byte(text), &m); err != nil { // whole numbers become int64, as in Unstructured
		t.Fatal(err)
	}
	return m
}

func compile(t testing.TB, text string, kind Kind) *Program {
	t.Helper()
	p, err := Compile(text, kind)
	if err != nil {
		t.Fatalf("%s\n%v", text, err)
	}
	return p
}

func TestPass(t *testing.T) {
	in := &input{object: object(t, deployment), old: object(t, deployment), typ: "MODIFIED", inferred: true}
	in.old["spec"].(map[string]any)["replicas"] = int64(2)
	for text, want := range map[string]bool{
		`type == "MODIFIED"`:                                                          true,
		`type in ["ADDED", "DELETED"]`:                                                false,
		`snapshot || !inferred`:                                                       false,
		`resource.resource == "pods"`:                                                 false,
		`resource.group == "apps"`:                                                    true,
		`resource["version"] == "v1"`:                                                 true,
		`object.metadata.name == 'web'`:                                               true,
		`object.spec.replicas > 2.5`:                                                  true,
		`object.spec.replicas != oldObject.spec.replicas`:                             true,
		`has(object.metadata.annotations)`:                                            false,
		`oldObject == null`:                                                           false,
		`object.?metadata.?annotations.?team.orValue("none") == "none"`:               true,
		`object.metadata.?labels["app.kubernetes.io/name"].orValue("") == "shop"`:     true,
		`object.spec.template.spec.containers.exists(c, c.image.endsWith(":latest"))`: true,
		`object.spec.template.spec.containers.all(c, c.image.startsWith("registry.example.com/"))`:                           false,
		`object.spec.template.spec.containers.map(c, c.name).join(",") == "web,log"`:                                         true,
		`object.metadata.labels.exists(k, k.startsWith("app.kubernetes.io/"))`:                                               true,
		`object.metadata.labels.exists(k, v, v == "shop")`:                                                                   true,
		`object.metadata.name.matches("^w.b$")`:                                                                              true,
		`object.metadata.name.find("[a-e]+") == "eb"`:                                                                        true,
		`"a1b22".findAll("[0-9]+") == ["1", "22"] && "a1b22".findAll("[0-9]+", 1) == ["1"]`:                                  true,
		`object.metadata.name.find(object.metadata.name) == "web"`:                                                           true,
		`quantity(object.spec.template.spec.containers[0].resources.limits.memory).isGreaterThan(quantity("0.5Gi"))`:         false,
		`quantity("1000m") == quantity("1") && quantity("1").compareTo(quantity("2")) == -1`:                                 true,
		`quantity("50k").add(quantity("20k")).sub(1000).asInteger() == 69000`:                                                true,
		`quantity("50k").isLessThan(quantity("1M")) && isQuantity("1.5Gi") && !isQuantity("1,5")`:                            true,
		`quantity("-1").sign() == -1 && quantity("1.5").isInteger() == false && quantity("1.5").asApproximateFloat() == 1.5`: true,
		`[1, 2, 3].sum() == 6 && [3, 1].min() == 1 && [3, 1].max() == 3 && [1, 2].isSorted() && ![2, 1].isSorted()`:          true,
		`["a", "b", "a"].indexOf("a") == 0 && ["a", "b", "a"].lastIndexOf("a") == 2 && "abc".indexOf("c") == 2`:              true,
		`sets.contains(["a", "b"], ["a"]) && math.greatest(1, 3) == 3 && ["b", "a"].sort() == ["a", "b"]`:                    true,
		`cidr("10.0.0.0/8").containsIP(ip(object.spec.template.spec.containers[1].ip))`:                                      true,
		`timestamp(object.metadata.creationTimestamp) < timestamp("2026-11-02T00:00:00Z")`:                                   true,
		`timestamp(object.metadata.creationTimestamp).getHours() == 10`:                                                      true,
		`cel.bind(s, object.status, s.readyReplicas < object.spec.replicas)`:                                                 true,
		`object.status.note == null`:                                   true,
		`.object.kind == "Deployment" // the leading dot is CEL's own`: true,
	} {
		got, err := compile(t, text, Filter).Pass(context.Background(), in)
		if err != nil || got != want {
			t.Errorf("%s\ngot %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestNoOldObject(t *testing.T) {
	in := &input{object: object(t, deployment), typ: "ADDED"}
	for text, want := range map[string]bool{
		`oldObject == null`: true,
		`oldObject == null || oldObject.spec.replicas == 1`: true,
		`has(oldObject.spec)`:                               false,
		`oldObject.?spec.?replicas.orValue(0) == 0`:         true,
	} {
		got, err := compile(t, text, Filter).Eval(context.Background(), in)
		if err != nil || got != want {
			t.Errorf("%s\ngot %v, %v, want %v", text, got, err, want)
		}
	}
}

func TestValue(t *testing.T) {
	in := &input{object: object(t, deployment), typ: "ADDED"}
	for text, want := range map[string]any{
		`"eu"`:                     "eu",
		`null`:                     nil,
		`object.spec.replicas + 1`: int64(4),
		`object.spec.ratio`:        0.5,
		`7u`:                       int64(7),
		`type == "ADDED"`:          true,
		`object.metadata.namespace + "/" + object.metadata.name`:       "shop/web",
		`object.metadata.labels`:                                       map[string]any{"app": "web", "app.kubernetes.io/name": "shop"},
		`object.spec.template.spec.containers.map(c, c.name)`:          []any{"web", "log"},
		`{"a": [1, 2.5, null, {"b": b"hi"}], ?"c": optional.none()}`:   map[string]any{"a": []any{int64(1), 2.5, nil, map[string]any{"b": "aGk="}}},
		`timestamp("2026-11-21T01:00:00+01:00")`:                       "2026-11-21T00:00:00Z",
		`duration("90s")`:                                              "90s",
		`quantity("1024Mi")`:                                           "1Gi",
		`string(quantity("1024Mi"))`:                                   "1Gi",
		`ip("10.0.0.1")`:                                               "10.0.0.1",
		`object.metadata.labels.transformMap(k, v, k == "app", v + 1)`: nil, // fails
		`1e300 * 1e300`:                                                nil, // fails
		`{1: 2}`:                                                       nil, // fails
		`18446744073709551615u`:                                        nil, // fails
		`object.metadata.?labels`:                                      nil, // fails
	} {
		p, err := Compile(text, Value)
		if err != nil {
			if want != nil {
				t.Errorf("%s: %v", text, err)
			}
			continue
		}
		got, err := p.Eval(context.Background(), in)
		var failed *EvalError
		switch {
		case err != nil && (want != nil || !errors.As(err, &failed)):
			t.Errorf("%s: %v", text, err)
		case err == nil && !reflect.DeepEqual(got, want):
			t.Errorf("%s\ngot  %#v\nwant %#v", text, got, want)
		case err == nil && want == nil && text != "null":
			t.Errorf("%s: got no error", text)
		}
		if _, err := json.Marshal(got); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// TestValueIsACopy: a transform may put a result into the object and change it there.
func TestValueIsACopy(t *testing.T) {
	in := &input{object: object(t, deployment)}
	got, err := compile(t, `object.metadata`, Value).Eval(context.Background(), in)
	if err != nil {
		t.Fatal(err)
	}
	got.(map[string]any)["labels"].(map[string]any)["app"] = "changed"
	if !reflect.DeepEqual(in.object, object(t, deployment)) {
		t.Errorf("the object was changed: %v", in.object)
	}
}

// TestAsksForWhatItNeeds: decoding an object is what evaluation costs most.
func TestAsksForWhatItNeeds(t *testing.T) {
	for text, want := range map[string]struct {
		objectOnly, needsOld bool
		asked                string // the parts of an Input with an identity that were decoded
	}{
		`type == "ADDED"`:                            {false, false, ""},
		`type == "DELETED" || object.spec.x == 1`:    {false, false, "object"},
		`type == "ADDED" || object.spec.x == 1`:      {false, false, ""},
		`object.metadata.name == "web" && snapshot`:  {false, false, ""},
		`has(object.metadata.namespace) && inferred`: {false, false, ""},
		`object.kind + object.apiVersion == "" || object.metadata.uid + object.metadata.resourceVersion == ""`: {true, false, ""},
		`object.metadata["name"] == object.?kind.orValue("")`:                                                  {true, false, ""},
		`object.metadata[0] == "web" || object[0]`:                                                             {true, false, "object"},
		`object.metadata.labels.app == "web"`:                                                                  {true, false, "object"},
		`object.metadata.name == "web" && has(object.spec)`:                                                    {true, false, "object"},
		`oldObject.metadata.name == object.metadata.name`:                                                      {false, true, "oldObject"},
		`resource.resource == "pods" && object.metadata.name == "x"`:                                           {true, false, ""},
		`["web"].exists(n, n == object.metadata.name)`:                                                         {true, false, ""},
		`["web"].exists(n, n == .object.spec.name)`:                                                            {true, false, "object"},
		`object == oldObject`:                                                                                  {false, true, "object oldObject"},
	} {
		p := compile(t, text, Filter)
		if p.ObjectOnly() != want.objectOnly || p.NeedsOld() != want.needsOld {
			t.Errorf("%s: got object only %v, needs old %v, want %+v", text, p.ObjectOnly(), p.NeedsOld(), want)
		}
		in := &input{object: object(t, deployment), old: object(t, deployment), typ: "ADDED"}
		_, _ = p.Eval(context.Background(), identified{in})
		if got := strings.Join(in.asked, " "); got != want.asked {
			t.Errorf("%s: asked for %q, want %q", text, got, want.asked)
		}
	}
}

func TestInputError(t *testing.T) {
	cause := errors.New("invalid character 's' in SECRET")
	in := &input{err: cause, typ: "ADDED"}
	_, err := compile(t, `object.spec.x == 1`, Filter).Eval(context.Background(), in)
	var failed *InputError
	if !errors.As(err, &failed) || !errors.Is(err, cause) || strings.Contains(err.Error(), "SECRET") {
		t.Errorf("got %v, want an InputError without the cause's text", err)
	}
	if got, err := compile(t, `type == "ADDED" || object.spec.x == 1`, Filter).Pass(context.Background(), in); err != nil || !got {
		t.Errorf("got %v, %v, want true: the object does not matter", got, err)
	}
}

// TestLong: what is long and not deep is fine.
func TestLong(t *testing.T) {
	for _, text := range []string{
		strings.Repeat("snapshot && ", 1500) + "snapshot",
		strings.Repeat("type == 'ADDED' || ", 900) + "snapshot",
		strings.Repeat("snapshot ? true : ", 40) + "inferred",
		strings.Repeat("(", 40) + "snapshot" + strings.Repeat(")", 40),
		"object" + strings.Repeat(".a", 40) + " == 1",
		`type in ["ADDED"` + strings.Repeat(`, "DELETED"`, 1500) + "]",
	} {
		compile(t, text, Filter)
	}
}

func TestContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	p := compile(t, `lists.range(100000).all(x, x >= 0)`, Filter)
	_, err := p.Eval(ctx, &input{})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the context's error", err)
	}
}

func TestCostLimit(t *testing.T) {
	p := compile(t, `lists.range(size(object.items)).all(x, lists.range(size(object.items)).all(y, x + y >= 0))`, Filter)
	in := &input{object: map[string]any{"items": make([]any, 2000)}}
	_, err := p.Eval(context.Background(), in)
	var failed *EvalError
	if !errors.As(err, &failed) || !strings.Contains(failed.Message, "1000000 steps") {
		t.Errorf("got %v, want an error about the cost", err)
	}
}

// TestConcurrent is for the race detector; the failing expressions are those that meet cel-go's shared error.
func TestConcurrent(t *testing.T) {
	for _, text := range []string{
		`object.metadata.name.matches("^w") && object.spec.replicas > 2`,
		`object.spec.replicas.matches("^w")`,
		`object.spec.replicas.startsWith("w")`,
		`object.spec.template.spec.containers.exists(c, quantity(c.resources.limits.cpu).isLessThan(quantity("1")))`,
	} {
		p := compile(t, text, Filter)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				in := &input{object: object(t, deployment)}
				for range 50 {
					_, _ = p.Eval(context.Background(), in)
				}
			})
		}
		wg.Wait()
	}
}
