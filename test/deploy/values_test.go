package deploy_test

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"
)

var update = flag.Bool("update", false, "write the table of the chart's values")

// TestValuesTable: deploy/chart/README.md lists what values.yaml has. `go test ./deploy -run ValuesTable -update` writes it.
func TestValuesTable(t *testing.T) {
	var document yaml.Node
	if err := yaml.Unmarshal([]byte(read(t, filepath.Join(chart, "values.yaml"))), &document); err != nil {
		t.Fatal(err)
	}
	var table bytes.Buffer
	table.WriteString("# Values of the chart\n\nMade of [values.yaml](values.yaml). [Install](../../docs/install.md#with-your-configuration) shows how to use them.\n\n" +
		"| value | default | meaning |\n|---|---|---|\n")
	writeValues(&table, "", document.Content[0])
	file := filepath.Join(chart, "README.md")
	if *update {
		if err := os.WriteFile(file, table.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, file) != table.String() {
		t.Errorf("%s is not what values.yaml says: run go test ./deploy -run ValuesTable -update", file)
	}
}

// writeValues writes a row for each value. A default of null may mean another one, which the text says. The maps whose keys are Kubernetes' or the configuration's are one value.
func writeValues(table *bytes.Buffer, prefix string, values *yaml.Node) {
	for n := 0; n < len(values.Content); n += 2 {
		key, value := values.Content[n], values.Content[n+1]
		path := prefix + key.Value
		meaning := comment(key.HeadComment, key.LineComment, value.LineComment)
		if whole := value.Style&yaml.FlowStyle != 0 || strings.HasSuffix(path, "SecurityContext") || path == "resources"; value.Kind == yaml.MappingNode && !whole {
			if meaning != "" {
				fmt.Fprintf(table, "| `%s` | | %s |\n", path, meaning)
			}
			writeValues(table, path+".", value)
			continue
		}
		fmt.Fprintf(table, "| `%s` | `%s` | %s |\n", path, flow(value), meaning)
	}
}

// comment joins comments to a line.
func comment(texts ...string) string {
	var words []string
	for line := range strings.Lines(strings.Join(texts, "\n")) {
		words = append(words, strings.Fields(strings.TrimLeft(line, "# "))...)
	}
	return strings.ReplaceAll(strings.Join(words, " "), "|", `\|`)
}

// flow returns a value as YAML in a line.
func flow(value *yaml.Node) string {
	copied := *value
	stripComments(&copied)
	text, err := yaml.Marshal(&copied)
	if err != nil {
		return err.Error()
	}
	return strings.Join(strings.Fields(string(text)), " ")
}

func stripComments(node *yaml.Node) {
	node.HeadComment, node.LineComment, node.FootComment = "", "", ""
	if node.Kind == yaml.MappingNode || node.Kind == yaml.SequenceNode {
		node.Style |= yaml.FlowStyle
	}
	for _, child := range node.Content {
		stripComments(child)
	}
}
