package main

import (
	"cmp"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
)

var update = flag.Bool("update", false, "write docs/configuration.md and docs/commands.md")

// jsonSchema is the part of a JSON Schema that the reference shows.
type jsonSchema struct {
	Description          string
	Type                 any
	Pattern              string
	Enum                 []any
	Default              any
	AnyOf                []jsonSchema
	Items                *jsonSchema
	Properties           map[string]jsonSchema
	AdditionalProperties json.RawMessage
	Required             []string
}

// TestConfigurationPage: docs/configuration.md is what the schema says. `go test ./cmd/exporter -update` writes it.
func TestConfigurationPage(t *testing.T) {
	raw, err := config.Schema(kinds())
	if err != nil {
		t.Fatal(err)
	}
	var whole jsonSchema
	if err := json.Unmarshal(raw, &whole); err != nil {
		t.Fatal(err)
	}
	const path = "../../docs/configuration.md"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- what follows is made from the schema -->\n", "<!-- end -->\n"
	before, rest, found := strings.Cut(string(page), begin)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatal("the page has no place for the reference")
	}
	want := before + begin + reference(whole) + end + after
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(page) {
		t.Error("docs/configuration.md is not what the schema says: run go test ./cmd/exporter -update")
	}
}

// reference returns a section for each list at the top of the file and for each kind of sink, and one for all other keys.
func reference(whole jsonSchema) string {
	var page strings.Builder
	section := func(title, about string, rows []row) {
		fmt.Fprintf(&page, "\n## %s\n\n", title)
		if about != "" {
			fmt.Fprintf(&page, "%s.\n\n", sentence(about))
		}
		page.WriteString("| key | value, **default** | meaning |\n|---|---|---|\n")
		for _, r := range rows {
			if r.standard != "" {
				r.value += ", " + r.standard
			}
			fmt.Fprintf(&page, "| `%s` | %s | %s |\n", r.key, r.value, r.meaning)
		}
	}
	var top []row
	for _, name := range []string{"cluster", "stateDir"} {
		top = append(top, rowOf(name, whole.Properties[name], slices.Contains(whole.Required, name)))
	}
	section("The top of the file", "", top)
	for _, name := range []string{"sources", "pipelines"} {
		section("`"+name+"`, a list", whole.Properties[name].Description, rowsOf("", *whole.Properties[name].Items))
	}
	sinkSections(whole.Properties["sinks"], section)
	var others []row
	for _, name := range slices.Sorted(maps.Keys(whole.Properties)) {
		others = append(others, rowsOf(name+".", whole.Properties[name])...)
	}
	section("Other keys", "", others)
	return page.String()
}

// sinkSections adds the keys that all kinds of sink have, and then the others of each kind.
func sinkSections(list jsonSchema, section func(title, about string, rows []row)) {
	kinds := map[string][]row{}
	var names []string
	for _, name := range slices.Sorted(maps.Keys(list.Items.Properties)) {
		if kind := list.Items.Properties[name]; len(kind.Properties) > 0 {
			names, kinds[name] = append(names, name), rowsOf("", kind)
		}
	}
	common := []row{rowOf("name", list.Items.Properties["name"], true)}
	for _, r := range slices.Clone(kinds[names[0]]) {
		var standards []string
		all := true
		for _, name := range names {
			n := slices.IndexFunc(kinds[name], func(other row) bool {
				return other.key == r.key && other.meaning == r.meaning && other.value == r.value
			})
			if n < 0 {
				all = false
				break
			}
			standards = append(standards, kinds[name][n].standard)
		}
		if !all {
			continue
		}
		times := map[string]int{}
		for _, standard := range standards {
			times[standard]++
		}
		r.standard = slices.MaxFunc(standards, func(a, b string) int { return cmp.Compare(times[a], times[b]) })
		usual := r.standard
		for n, name := range names {
			if standards[n] != usual {
				r.standard += ", " + name + " " + standards[n]
			}
		}
		common = append(common, row{"<kind>." + r.key, r.value, r.standard, r.meaning})
		for _, name := range names {
			kinds[name] = slices.DeleteFunc(kinds[name], func(other row) bool { return other.key == r.key })
		}
	}
	section("`sinks`, a list", "each has a name and one of "+strings.Join(names, ", ")+", which take these keys. `tls: {}` is TLS with all defaults. It has no effect on a file and stdout", common)
	for _, name := range names {
		if len(kinds[name]) > 0 {
			section("`sinks[]."+name+"`", "", kinds[name])
		}
	}
}

type row struct{ key, value, standard, meaning string }

// rowsOf returns the keys of a block and of the blocks in it, those that are required first.
func rowsOf(prefix string, block jsonSchema) (rows []row) {
	names := slices.SortedFunc(maps.Keys(block.Properties), func(a, b string) int {
		first := func(name string) int { return slices.Index([]string{"name"}, name) }
		return cmp.Or(cmp.Compare(first(b), first(a)), strings.Compare(a, b))
	})
	for _, required := range []bool{true, false} {
		for _, name := range names {
			if slices.Contains(block.Required, name) != required {
				continue
			}
			key := block.Properties[name]
			if len(key.Properties) == 0 {
				rows = append(rows, rowOf(prefix+name, key, required))
			}
			rows = append(rows, rowsOf(prefix+name+".", key)...)
			if key.Items != nil && len(key.Items.Properties) > 0 {
				rows = append(rows, rowsOf(prefix+name+"[].", *key.Items)...)
			}
		}
	}
	return rows
}

func rowOf(key string, s jsonSchema, required bool) row {
	takes, standard := value(s), ""
	given := fmt.Sprintf("`%v`", s.Default)
	if list, ok := s.Default.([]any); ok {
		given = "`" + strings.Join(strings.Fields(fmt.Sprint(list)), ", ") + "`"
	}
	switch {
	case required:
		standard = "required"
	case s.Default == nil || strings.Contains(s.Description, "default"):
	case strings.Contains(takes, given):
		takes = strings.Replace(takes, given, "**"+given+"**", 1)
	default:
		standard = "**" + given + "**"
	}
	return row{key, takes, standard, strings.NewReplacer("|", `\|`, "<", "&lt;").Replace(sentence(s.Description))}
}

// value says what a key takes.
func value(s jsonSchema) string {
	switch {
	case len(s.Enum) > 0:
		var values []string
		for _, v := range s.Enum {
			values = append(values, fmt.Sprintf("`%v`", v))
		}
		return strings.Join(values, ", ")
	case s.Items != nil && len(s.Items.Properties) > 0:
		return "list"
	case s.Items != nil && strings.HasPrefix(value(*s.Items), "`"):
		return "list of " + value(*s.Items)
	case s.Items != nil:
		return value(*s.Items) + "s"
	case strings.Contains(s.Pattern, "KMGTPE"):
		return "size"
	case strings.Contains(s.Pattern, "ns|us"):
		return "time"
	case len(s.AnyOf) > 0:
		return value(s.AnyOf[0])
	case s.Type == "object":
		return "map"
	default:
		return fmt.Sprint(s.Type)
	}
}

// sentence begins with a capital, unless it begins with a key or a value.
func sentence(text string) string {
	first, _, _ := strings.Cut(text, " ")
	if strings.Trim(first, "abcdefghijklmnopqrstuvwxyz,;:") != "" {
		return text
	}
	return strings.ToUpper(text[:1]) + text[1:]
}

// TestCommandsPage: docs/commands.md is what --help prints. `go test ./cmd/exporter -update` writes it.
func TestCommandsPage(t *testing.T) {
	const path, begin = "../../docs/commands.md", "<!-- what follows is what --help prints -->\n"
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, _, found := strings.Cut(string(page), begin)
	if !found {
		t.Fatal("the page has no place for the commands")
	}
	want := before + begin + helpOf(t, newRoot())
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if want != string(page) {
		t.Error("docs/commands.md is not what --help prints: run go test ./cmd/exporter -update")
	}
}

// helpOf returns what a command and those below it print as their help.
func helpOf(t *testing.T, command *cobra.Command) string {
	t.Helper()
	var help strings.Builder
	command.SetOut(&help)
	if err := command.Help(); err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("\n## %s\n\n```\n%s```\n", command.CommandPath(), strings.TrimLeft(help.String(), "\n"))
	for _, below := range command.Commands() {
		text += helpOf(t, below)
	}
	return text
}
