package expr

import (
	"fmt"
	"strings"
	"testing"
)

func TestReads(t *testing.T) {
	in := &input{object: object(t, deployment), typ: "MODIFIED"}
	for text, want := range map[string]string{
		`type == "ADDED" || !snapshot`:                                                  `type=MODIFIED snapshot=false`,
		`resource.group == "apps" && size(resource) == 3`:                               `resource.group=apps resource=map[group:apps resource:deployments version:v1]`,
		`has(object.metadata.labels) && object.metadata.labels.app == "web"`:            `object.metadata.labels=map[app:web app.kubernetes.io/name:shop] object.metadata.labels.app=web`,
		`has(object.metadata.labels)`:                                                   `object.metadata.labels=map[app:web app.kubernetes.io/name:shop]`,
		`object.metadata.?labels[?"app.kubernetes.io/name"].orValue("") == "x"`:         `object.metadata.labels["app.kubernetes.io/name"]=shop`,
		`object.spec.template.spec.containers[1].name == "log"`:                         `object.spec.template.spec.containers[1].name=log`,
		`object.spec.template.spec.containers[9].name == "log"`:                         `object.spec.template.spec.containers[9].name absent`,
		`oldObject == null || object.spec.replicas > oldObject.spec.replicas`:           `oldObject=<nil> object.spec.replicas=3 oldObject.spec.replicas absent`,
		`object.?status.?conditions.orValue([]).exists(c, c.type == object.kind)`:       `object.status.conditions absent object.kind=Deployment`,
		`cel.bind(ns, object.metadata.?namespace.orValue(""), ns in ["shop", "a"])`:     `object.metadata.namespace=shop`,
		`[object.metadata.name, "x"].exists(n, n == {"a": object.kind}["a"])`:           `object.metadata.name=web object.kind=Deployment`,
		`object.metadata.name == "web" && object.metadata.name.startsWith("w") || true`: `object.metadata.name=web`,
	} {
		var got []string
		for _, read := range compile(t, text, Filter).Reads() {
			value, ok, err := read.In(in)
			if err != nil {
				t.Fatal(err)
			}
			if ok {
				got = append(got, fmt.Sprintf("%s=%v", read, value))
			} else {
				got = append(got, read.String()+" absent")
			}
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%s\ngot  %s\nwant %s", text, got, want)
		}
	}
}
