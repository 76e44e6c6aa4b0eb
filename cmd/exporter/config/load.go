package config

import (
	"fmt"
	"os"
	"reflect"

	"github.com/kubeferry/kubeferry/sinks"
)

// Options are what a file's meaning depends on beside its text.
type Options struct {
	// Kinds are the kinds of sink there are.
	Kinds []sinks.Kind
	// Getenv looks a variable up for ${NAME}; nil is os.LookupEnv.
	Getenv func(string) (string, bool)
	// AllowUnset makes a ${NAME} that is not set, and a ${file:/path} that is not there, a warning. The value is not checked. Nothing can run
	// with such a [Config].
	AllowUnset bool
}

// Load reads the file at path. Its error is a [Faults]; warnings come with or without one.
func Load(path string, opts Options) (config *Config, warnings Faults, err error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, Faults{{File: path, Message: fmt.Sprintf("cannot be read: %v", WithoutPath(err))}}
	}
	return Parse(data, path, opts)
}

// Parse is [Load] for a file's content; name stands for the file in messages.
func Parse(data []byte, name string, opts Options) (config *Config, warnings Faults, err error) {
	if opts.Getenv == nil {
		opts.Getenv = os.LookupEnv
	}
	faults, warningList := &faultList{file: name}, &faultList{file: name}
	tree := parseYAML(data, faults)
	if tree != nil && tree.isNull() {
		faults.add(tree.line, tree.column, "", "the file is empty; it needs at least cluster, sources, pipelines and sinks")
	}
	if len(faults.faults) > 0 {
		return nil, nil, faults.sorted()
	}

	config = new(Config)
	config.setDefaults()
	decode := &decoder{
		faults: faults, warnings: warningList, kinds: opts.Kinds, getenv: opts.Getenv, allowUnset: opts.AllowUnset, places: map[string]*node{},
	}
	decode.value(tree, "", reflect.ValueOf(config).Elem(), field{})

	check := &validator{config: config, decode: decode, faults: faults, warnings: warningList}
	check.all()
	if len(faults.faults) > 0 {
		return nil, warningList.sorted(), faults.sorted()
	}
	return config, warningList.sorted(), nil
}
