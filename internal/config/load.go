package config

import (
	"fmt"
	"io"
	"os"
	"reflect"

	"gopkg.in/yaml.v3"

	"github.com/kubeferry/kubeferry/sinks"
)

// Options are what a file's meaning depends on beside its text.
type Options struct {
	// Kinds are the kinds of sink there are.
	Kinds []sinks.Kind
	// Getenv looks a variable up for ${NAME}; nil is os.LookupEnv.
	Getenv func(string) (string, bool)
}

// Load reads the file at path. Its error is a [Faults]; warnings come with or without one.
func Load(path string, opts Options) (*Config, []Warning, error) {
	data, err := readFile(path)
	if err != nil {
		return nil, nil, Faults{{File: path, Message: fmt.Sprintf("cannot be read: %v", cause(err))}}
	}
	return Parse(data, path, opts)
}

// Parse is [Load] for a file's content; name stands for the file in messages.
func Parse(data []byte, name string, opts Options) (*Config, []Warning, error) {
	if opts.Getenv == nil {
		opts.Getenv = os.LookupEnv
	}
	faults := &faultList{file: name}
	fail := func() (*Config, []Warning, error) {
		sortFaults(faults.faults)
		return nil, nil, Faults(faults.faults)
	}

	document, fault := parseYAML(data)
	if fault != nil {
		fault.File = name
		faults.faults = append(faults.faults, *fault)
		return fail()
	}
	builder := &treeBuilder{faults: faults, open: map[*yaml.Node]bool{}}
	tree := builder.build(document, "", 0)
	if builder.nodes >= maxNodes {
		return fail()
	}
	if tree.isNull() {
		faults.add(tree, "", "the file is empty; it needs at least cluster, sources, pipelines and sinks")
	}
	if tree.failed || tree.isNull() {
		return fail()
	}
	(&expander{faults: faults, getenv: opts.Getenv}).expand(tree, "")

	config := new(Config)
	config.setDefaults()
	decode := &decoder{faults: faults, kinds: opts.Kinds, places: map[string]place{}}
	decode.value(tree, "", reflect.ValueOf(config).Elem(), nil)

	check := newValidator(config, decode)
	check.all()
	if len(faults.faults) > 0 {
		config, _, err := fail()
		return config, check.sortedWarnings(), err
	}
	return config, check.sortedWarnings(), nil
}

func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	// One byte more than parseYAML takes, so that it can tell.
	return io.ReadAll(io.LimitReader(file, maxFileBytes+1))
}
