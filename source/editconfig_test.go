package source

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"pgregory.net/rapid"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/source/sourcetest"
)

// editConfig is a configuration.
type editConfig struct {
	sources   []editSource
	pipelines []editPipeline
}

// editSource is a source of a configuration.
type editSource struct {
	name                         string
	resources                    []schema.GroupVersionResource
	namespaces                   delta.Namespaces
	labelSelector, fieldSelector string
}

func (s *editSource) options() Options {
	return Options{
		Name: s.name, Resources: s.resources, Namespaces: s.namespaces, LabelSelector: s.labelSelector, FieldSelector: s.fieldSelector,
		Snapshot: delta.SnapshotInitial, absence: absenceRule{answers: 1}, Backoff: wait.Backoff{Duration: time.Millisecond, Steps: 1000, Factor: 1},
	}
}

// selects reports whether the source selects an object of its resources.
func (s *editSource) selects(server *sourcetest.Server, o sourcetest.Object) bool {
	return s.namespaces.Match(o.Namespace) && (s.labelSelector == "" || s.labelSelector == "tier="+server.Labels(o)["tier"]) &&
		(s.fieldSelector == "" || o.Name != "b")
}

// editPipeline is a pipeline of a configuration.
type editPipeline struct {
	name    string
	sources []string
	filter  string // of editFilters
	onLeave bool   // `onLeave: deleted`
}

// editFilters are the filters that a pipeline may have.
var editFilters = map[string]func(name string, version uint64) bool{
	"all":  func(string, uint64) bool { return true },
	"a":    func(name string, _ uint64) bool { return name == "a" },
	"even": func(_ string, version uint64) bool { return version%2 == 0 },
}

// edits are the kinds of edits. What they send stands in a table of docs/operations.md.
var edits = []struct {
	name string
	edit func(m *editModel, c *editConfig)
}{
	{"a selector", func(m *editModel, c *editConfig) {
		s := m.drawSource(c)
		s.labelSelector = rapid.SampledFrom([]string{"", "tier=web", "tier=db"}).Draw(m.rt, "label selector")
		s.fieldSelector = rapid.SampledFrom([]string{"", "", "metadata.name!=b"}).Draw(m.rt, "field selector")
	}},
	{"namespaces", func(m *editModel, c *editConfig) {
		m.drawSource(c).namespaces = rapid.SampledFrom([]delta.Namespaces{
			{},
			{Include: []string{"red"}},
			{Include: []string{"red", "blue"}},
			{Include: []string{"ns", "red"}},
			{Include: []string{"blue", "ns"}},
			{Include: []string{"*e*"}},
			{Exclude: []string{"blue"}},
			{Exclude: []string{"n*"}},
		}).Draw(m.rt, "namespaces")
	}},
	{"a resource of a source", func(m *editModel, c *editConfig) {
		m.drawSource(c).resources = rapid.SampledFrom([][]schema.GroupVersionResource{
			{sourcetest.Things}, {sourcetest.Gadgets}, {sourcetest.Things, sourcetest.Gadgets},
		}).Draw(m.rt, "resources")
	}},
	{"a resource moves to another source", func(_ *editModel, c *editConfig) {
		c.sources[0].resources, c.sources[1].resources = c.sources[1].resources, c.sources[0].resources
	}},
	{"a source is renamed", func(m *editModel, c *editConfig) {
		s := m.drawSource(c)
		name := rapid.SampledFrom([]string{"s", "t", "u"}).Draw(m.rt, "source")
		if slices.ContainsFunc(c.sources, func(other editSource) bool { return other.name == name }) {
			return
		}
		for n := range c.pipelines {
			for i, taken := range c.pipelines[n].sources {
				if taken == s.name {
					c.pipelines[n].sources[i] = name
				}
			}
		}
		s.name = name
	}},
	{"the sources of a pipeline", func(m *editModel, c *editConfig) {
		sources := rapid.SampledFrom([][]int{{0}, {1}, {0, 1}, {1, 0}}).Draw(m.rt, "sources")
		p := m.drawPipeline(c)
		p.sources = nil
		for _, n := range sources {
			p.sources = append(p.sources, c.sources[n].name)
		}
	}},
	{"a pipeline is added or removed", func(m *editModel, c *editConfig) {
		if len(c.pipelines) > 1 {
			n := m.draw("pipeline", 1)
			c.pipelines = slices.Delete(c.pipelines, n, n+1)
			return
		}
		name := map[string]string{"p": "q", "q": "p"}[c.pipelines[0].name]
		added := editPipeline{name: name, sources: []string{c.sources[0].name, c.sources[1].name}, filter: "all", onLeave: m.draw("on leave", 1) == 0}
		c.pipelines = append(c.pipelines, added)
		if m.draw("first", 1) == 0 {
			slices.Reverse(c.pipelines)
		}
	}},
	{"filters", func(m *editModel, c *editConfig) {
		p := m.drawPipeline(c)
		p.filter, p.onLeave = rapid.SampledFrom([]string{"all", "a", "even"}).Draw(m.rt, "filter"), m.draw("on leave", 1) == 0
	}},
}

func (m *editModel) drawSource(c *editConfig) *editSource { return &c.sources[m.draw("source", 1)] }

func (m *editModel) drawPipeline(c *editConfig) *editPipeline {
	return &c.pipelines[m.draw("pipeline", len(c.pipelines)-1)]
}

// edit undoes the last edit of the file, or makes one or two at once. kubeferry refuses some.
func (m *editModel) edit() {
	if m.former != nil && m.draw("undo", 2) == 0 {
		m.configure(*m.former, "the last edit is undone")
		return
	}
	c := m.config.clone()
	var made []string
	for range 1 + m.draw("more edits", 1) {
		kind := m.kind
		if m.draw("another kind", 2) == 0 {
			kind = m.draw("edit", len(edits)-1)
		}
		edits[kind].edit(m, &c)
		made = append(made, edits[kind].name)
	}
	if !c.refused() {
		m.configure(c, strings.Join(made, ", "))
	}
}

// configure makes the next run have another configuration.
func (m *editModel) configure(c editConfig, how string) {
	for _, before := range m.config.pipelines {
		for _, p := range c.pipelines {
			if consumer := m.consumers[p.name]; consumer != nil && p.name == before.name && p.filter != before.filter {
				consumer.lacks = true
			}
		}
	}
	former := m.config
	m.former, m.config = &former, c
	m.note("the file is edited: %s", how)
}

// refused reports whether a resource comes to a pipeline through two sources.
func (c *editConfig) refused() bool {
	for _, p := range c.pipelines {
		has := map[schema.GroupVersionResource]bool{}
		for _, from := range c.sources {
			for _, resource := range from.resources {
				if !slices.Contains(p.sources, from.name) {
					continue
				}
				if has[resource] {
					return true
				}
				has[resource] = true
			}
		}
	}
	return false
}

func (c editConfig) String() string {
	var text strings.Builder
	for _, s := range c.sources {
		fmt.Fprintf(&text, "\n    source %s:", s.name)
		for _, resource := range s.resources {
			fmt.Fprint(&text, " ", delta.ResourceName(resource))
		}
		fmt.Fprintf(&text, ", namespaces %+v, selectors %q %q", s.namespaces, s.labelSelector, s.fieldSelector)
	}
	for _, p := range c.pipelines {
		fmt.Fprintf(&text, "\n    pipeline %s: of %v, filter %q, leaving is announced: %v", p.name, p.sources, p.filter, p.onLeave)
	}
	return text.String()
}

func (c *editConfig) clone() editConfig {
	clone := editConfig{slices.Clone(c.sources), slices.Clone(c.pipelines)}
	for n := range clone.pipelines {
		clone.pipelines[n].sources = slices.Clone(clone.pipelines[n].sources)
	}
	return clone
}
