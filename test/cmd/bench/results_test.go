package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestChecks(t *testing.T) {
	run := func(cpu time.Duration, peak int64) sample {
		return sample{CPU: cpu, Peak: peak << 20, Records: 1000, Stream: time.Second}
	}
	// One pair that a neighbour disturbed does not decide.
	of := pair{
		a: []sample{run(10*time.Millisecond, 20), run(10*time.Millisecond, 20), run(10*time.Millisecond, 20)},
		b: []sample{run(20*time.Millisecond, 40), run(90*time.Millisecond, 40), run(21*time.Millisecond, 40)},
	}
	for _, tt := range []struct {
		name string
		got  check
		want check
	}{
		{"met", of.against("x", cpuEach, atMost(2.2, "≤ 2.2")), check{What: "x", Base: "10.0", Value: "21.0", Ratio: "2.10", Target: "≤ 2.2", Outcome: met}},
		{"missed", of.against("x", cpuEach, atMost(2, "≤ 2")), check{What: "x", Base: "10.0", Value: "21.0", Ratio: "2.10", Target: "≤ 2", Outcome: missed}},
		{"no target", of.named("one", "two").against("x", cpuEach, nil), check{What: "x", Base: "one 10.0", Value: "two 21.0", Ratio: "2.10"}},
		{"a bound", of.bounded("x", peak, 39, "≤ 39"), check{What: "x", Base: "20.0", Value: "40.0", Ratio: "2.00", Target: "≤ 39", Outcome: missed}},
		{"at least", of.against("x", speed, atLeast(0.9, "≥ 0.9")), check{What: "x", Base: "1000", Value: "1000", Ratio: "1.00", Target: "≥ 0.9", Outcome: met}},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: got %+v, want %+v", tt.name, tt.got, tt.want)
		}
	}
}

func TestTable(t *testing.T) {
	r := results{Machine: "m", Scale: 1, Pairs: 3, Rows: []rowResult{{Name: "row", Checks: []check{
		{What: "CPU, µs", Base: "1.00", Value: "12,345", Ratio: "2.00", Target: "≤ 2", Outcome: met}, {What: "RSS"},
	}}}}
	var out bytes.Buffer
	r.print(&out)
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")[3:]
	for _, line := range lines {
		if got, want := strings.Count(line, "|"), 8; got != want || len([]rune(line)) != len([]rune(lines[0])) {
			t.Errorf("the table is askew:\n%s", out.String())
			break
		}
	}
	if r.missed() {
		t.Error("nothing was missed")
	}
}

func TestVersionIn(t *testing.T) {
	for _, tt := range []struct {
		text string
		form form
		want uint64
	}{
		{`{"type":"ADDED","object":{"metadata":{"uid":"u","resourceVersion":"235"},"x":{"resourceVersion":"1"}}}`, frames, 235},
		{`{"specversion":"1.0","partitionkey":"k","sequence":"00000000000000000235","data":{}}`, cloudEvents, 235},
		{`{"metadata":{}}`, frames, 0},
	} {
		if got, ok := versionIn([]byte(tt.text), tt.form.version); got != tt.want || ok != (tt.want > 0) {
			t.Errorf("%s: got %d, %v, want %d", tt.text, got, ok, tt.want)
		}
	}
}

func TestPodTemplate(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "source", "testdata", "pod.json"))
	if err != nil {
		t.Fatal(err)
	}
	pod, err := podTemplate(string(text))
	if err != nil {
		t.Fatal(err)
	}
	var decoded struct {
		Metadata     map[string]any
		Spec, Status map[string]any
	}
	if err := json.Unmarshal([]byte(pod), &decoded); err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"uid", "resourceVersion", "managedFields"} {
		if _, ok := decoded.Metadata[field]; ok {
			t.Errorf("metadata.%s is still there", field)
		}
	}
	if decoded.Metadata["name"] != podName || len(decoded.Spec) == 0 || len(decoded.Status) == 0 {
		t.Errorf("got %s", pod)
	}
}
