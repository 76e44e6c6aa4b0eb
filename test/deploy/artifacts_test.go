package deploy_test

import (
	"crypto/sha256"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/kubeferry/kubeferry/test/internal/release"
)

// TestReleaseFiles: what `make release` writes is whole, and twice the same.
func TestReleaseFiles(t *testing.T) {
	t.Parallel()
	first, err := release.Dir()
	if err != nil {
		t.Fatal(err)
	}
	second := t.TempDir()
	if err := release.Run(t.Context(), t.Output(), second); err != nil {
		t.Fatal(err)
	}
	program := strings.Join([]string{"kubeferry", release.Built, runtime.GOOS, runtime.GOARCH}, "-")
	const chart, image = "kubeferry-1.2.3.tgz", "kubeferry-" + release.Built + "-image.tar"
	want := []string{release.Checksums, chart, image, program, program + ".cdx.json"}
	sums := map[string]string{}
	for line := range strings.Lines(read(t, filepath.Join(second, release.Checksums))) {
		sum, file, _ := strings.Cut(strings.TrimSpace(line), "  ")
		sums[file] = sum
	}
	if got := slices.Sorted(maps.Keys(sums)); !slices.Equal(got, want[1:]) {
		t.Errorf("there are checksums of %q, want %q", got, want[1:])
	}
	entries, err := os.ReadDir(second)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	if !slices.Equal(got, want) {
		t.Fatalf("it writes %q, want %q", got, want)
	}
	for _, file := range want {
		content := read(t, filepath.Join(second, file))
		if content != read(t, filepath.Join(first, file)) {
			t.Errorf("built twice, %s is not the same", file)
		}
		if sum := fmt.Sprintf("%x", sha256.Sum256([]byte(content))); file != release.Checksums && sum != sums[file] {
			t.Errorf("the checksum of %s is %s, but %s says %s", file, sum, release.Checksums, sums[file])
		}
	}

	out, err := exec.CommandContext(t.Context(), filepath.Join(second, program), "version").CombinedOutput()
	if err != nil || !strings.Contains(string(out), release.Built) {
		t.Errorf("the program prints %q, %v", out, err)
	}
	archive := filepath.Join(second, chart)
	if out, err := helm(t.Context(), t, "", "lint", "--strict", archive); err != nil {
		t.Error(out, err)
	}
	out2, err := helm(t.Context(), t, "", "template", "kubeferry", archive)
	if err != nil || !strings.Contains(out2, "image: ghcr.io/kubeferry/kubeferry:"+release.Built+"\n") {
		t.Errorf("the chart runs another image than ghcr.io/kubeferry/kubeferry:%s: %v\n%s", release.Built, err, out2)
	}
	checkBill(t, read(t, filepath.Join(second, program+".cdx.json")), sums[program])
}

// checkBill: a bill of materials has the form that CycloneDX defines, and lists the modules that the go command finds in the program.
func checkBill(t *testing.T, text, sum string) {
	t.Helper()
	goList := func(dir string, args ...string) string {
		t.Helper()
		list := exec.CommandContext(t.Context(), "go", append([]string{"list"}, args...)...)
		list.Dir, list.Env = dir, append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
		out, err := list.Output()
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(out))
	}
	compiler := jsonschema.NewCompiler()
	schemas := filepath.Join(goList(filepath.Join("..", ".."), "-C", "test", "-m", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go"), "schema")
	for name, file := range map[string]string{"bom-1.6": "bom-1.6.schema.json", "spdx": "spdx.schema.json", "jsf-0.82": "jsf-0.82.schemax.json"} {
		document, err := jsonschema.UnmarshalJSON(strings.NewReader(read(t, filepath.Join(schemas, file))))
		if err != nil {
			t.Fatal(err)
		}
		if err := compiler.AddResource("http://cyclonedx.org/schema/"+name+".schema.json", document); err != nil {
			t.Fatal(err)
		}
	}
	schema, err := compiler.Compile("http://cyclonedx.org/schema/bom-1.6.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	document, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	if err == nil {
		err = schema.Validate(document)
	}
	if err != nil {
		t.Error(err)
	}

	var bill cdx.BOM
	if err := cdx.NewBOMDecoder(strings.NewReader(text), cdx.BOMFileFormatJSON).Decode(&bill); err != nil {
		t.Fatal(err)
	}
	if program := bill.Metadata.Component; program.Version != release.Built || (*program.Hashes)[0].Value != sum {
		t.Errorf("it is the bill of %+v", program)
	}
	want := map[string]bool{"std " + strings.TrimPrefix(runtime.Version(), "go"): true}
	modules := goList(filepath.Join("..", ".."), "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}} {{.Version}}{{end}}{{end}}", "./cmd/exporter")
	for module := range strings.Lines(modules) {
		want[strings.TrimSpace(module)] = true
	}
	delete(want, "")
	got := map[string]bool{}
	for _, c := range *bill.Components {
		got[c.Name+" "+c.Version] = true
	}
	if !maps.Equal(got, want) || len(want) < 20 {
		t.Errorf("it lists\n%q\nwant\n%q", slices.Sorted(maps.Keys(got)), slices.Sorted(maps.Keys(want)))
	}
}
