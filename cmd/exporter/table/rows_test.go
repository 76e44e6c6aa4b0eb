package table

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestRow(t *testing.T) {
	const id = "demo/0dff195a-5440-485e-a3b8-7db457092287/206/MODIFIED"
	const what = "spec.size 1 → 2, spec.color red → green"
	for _, test := range []struct {
		name         string
		width        int
		color        bool
		detail       string
		object, what string
		want         string
	}{
		{"file", 0, false, "ID", "widgets shop/gear-1", what, "12:00:00.000  MODIFIED  widgets shop/gear-1           " + id + "    spec.size 1 → 2, spec.color red → green"},
		{"wide", 160, true, "ID", "widgets shop/gear-1", what, "12:00:00.000  \x1b[33mMODIFIED\x1b[0m  widgets shop/gear-1           " + id + "    spec.size 1 → 2, spec.color red → green"},
		{"usual", 120, false, "ID", "widgets shop/gear-1", what, "12:00:00.000  MODIFIED  widgets shop/gear-1           spec.size 1 → 2, spec.color red → green"},
		{"narrow", 80, false, "ID", "widgets shop/gear-1", what, "12:00:00  MODIFIED  widgets shop/gear-1           spec.size 1 → 2, spec.color r…"},
		{"no detail", 80, false, "", "widgets shop/gear-1", what, "12:00:00  MODIFIED  widgets shop/gear-1           spec.size 1 → 2, spec.color r…"},
		{"long name", 0, false, "", "pods shop/" + strings.Repeat("a", 40), "x", "12:00:00.000  MODIFIED  pods shop/" + strings.Repeat("a", 40) + "  x"},
		{"control characters", 0, false, "", "pods a", "a\x1b[31m\nb\u202e\u009b", "12:00:00.000  MODIFIED  pods a                        a\uFFFD[31m b\uFFFD\uFFFD"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var out bytes.Buffer
			table := &Table{Out: &out, Color: test.color, Width: func() int { return test.width }, Detail: test.detail}
			table.Row(time.Date(2026, 11, 22, 12, 0, 0, 0, time.Local), "MODIFIED", test.object, id, test.what)
			if got := strings.TrimSuffix(out.String(), "\n"); got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
}

func TestDifference(t *testing.T) {
	type object = map[string]any
	container := func(name, image string) object { return object{"name": name, "image": image} }
	condition := func(status, time string) object {
		return object{"type": "Ready", "status": status, "lastTransitionTime": time}
	}
	long := strings.Repeat("x", 100)
	for name, test := range map[string]struct {
		before, after object
		want          string
	}{
		"fields": {
			object{"metadata": object{"resourceVersion": "1", "generation": 1, "labels": object{"old": "yes"}}, "spec": object{"replicas": 1}},
			object{"metadata": object{"resourceVersion": "2", "generation": 2, "labels": object{"new": "yes"}}, "spec": object{"replicas": 2}, "status": object{"replicas": 1}},
			"+ metadata.labels.new yes, - metadata.labels.old, spec.replicas 1 → 2, + status.replicas 1",
		},
		"kubectl apply": {
			object{"metadata": object{"annotations": object{"kubectl.kubernetes.io/last-applied-configuration": "1"}}, "spec": object{"replicas": 1}},
			object{"metadata": object{"annotations": object{"kubectl.kubernetes.io/last-applied-configuration": "2"}}, "spec": object{"replicas": 2}},
			"spec.replicas 1 → 2",
		},
		"items by their names": {
			object{"spec": object{"containers": []any{container("a", "a:1"), container("b", "b:1")}}},
			object{"spec": object{"containers": []any{container("b", "b:2"), container("a", "a:1")}}},
			"containers[b].image b:1 → b:2",
		},
		"items by their places": {
			object{"spec": object{"args": []any{"-a", "-b"}, "ports": []any{container("", "1")}}},
			object{"spec": object{"args": []any{"-a", "-c"}, "ports": []any{container("", "2")}}},
			"spec.args[1] -b → -c, ports[0].image 1 → 2",
		},
		"a condition": {
			object{"status": object{"conditions": []any{condition("False", "12:00")}}},
			object{"status": object{"conditions": []any{condition("True", "12:01")}}},
			"conditions[Ready].status False → True",
		},
		"only a time": {
			object{"status": object{"conditions": []any{condition("True", "12:00")}}},
			object{"status": object{"conditions": []any{condition("True", "12:01")}}},
			"conditions[Ready].lastTransitionTime 12:00 → 12:01",
		},
		"empty": {object{"data": object{"a": ""}}, object{"data": object{"b": ""}}, `- data.a, + data.b ""`},
		"long":  {object{"data": object{"a": long + "1"}}, object{"data": object{"a": long + "2\n"}}, "data.a …xxxxxxxxxx1 → …xxxxxxxxxx2\n"},
		"digests": {
			object{"data": object{"a": "redacted:hmac-sha256:0123456789abcdef"}},
			object{"data": object{"a": "redacted:hmac-sha256:fedcba9876543210"}},
			"data.a redacted:01234567 → redacted:fedcba98",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Difference(test.before, test.after); got != test.want {
				t.Errorf("got  %q\nwant %q", got, test.want)
			}
		})
	}
	many, none := object{}, object{"data": object{}}
	for letter := 'a'; letter < 'p'; letter++ {
		many[string(letter)] = 1
	}
	if got := Difference(none, object{"data": many}); !strings.HasSuffix(got, "+ data.l 1, and 3 more") {
		t.Errorf("got %q", got)
	}
}

func TestDescribe(t *testing.T) {
	type object = map[string]any
	for want, o := range map[string]object{
		"containers[app].image nginx:1.27, spec.replicas 1": {"apiVersion": "apps/v1", "spec": object{
			"replicas": 1, "revisionHistoryLimit": 10, "template": object{"spec": object{"containers": []any{object{"name": "app", "image": "nginx:1.27"}}}},
		}},
		"spec.color red, spec.size 1":             {"apiVersion": "example.com/v1", "spec": object{"size": 1, "color": "red", "parts": []any{"a"}}},
		"message Back-off, reason BackOff":        {"apiVersion": "v1", "reason": "BackOff", "message": "Back-off", "type": "Warning"},
		"data.a " + strings.Repeat("b", 59) + "…": {"apiVersion": "v1", "data": object{"a": strings.Repeat("b", 61)}},
	} {
		if got := Describe(o); got != want {
			t.Errorf("got  %q\nwant %q", got, want)
		}
	}
}
