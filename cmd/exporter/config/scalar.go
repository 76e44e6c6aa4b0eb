package config

import (
	"fmt"
	"math"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
	"github.com/kubeferry/kubeferry/sinks"
)

// scalar is a type whose values are scalars in the file.
type scalar struct {
	noun string   // what the file must hold
	tags []string // for what YAML may take it
	// parse returns a value that can be converted to the type. Its error may hold the text.
	parse func(text string) (any, error)
	// explains is set if the error of parse says what is wrong.
	explains bool
	schema   []jsonSchema // what it can be beside a text with ${…}
}

var (
	durationType = reflect.TypeFor[time.Duration]()
	bytesType    = reflect.TypeFor[sinks.Bytes]()
	resourceType = reflect.TypeFor[schema.GroupVersionResource]()
)

// scalarOf returns how values of a type are written, and false if these are no scalars.
func scalarOf(t reflect.Type) (scalar, bool) {
	text, number := []string{"!!str"}, []string{"!!int", "!!float"}
	path := scalar{noun: "a path such as spec.template", tags: text, explains: true, schema: []jsonSchema{{"type": "string"}}}
	switch {
	case t == durationType:
		return scalar{
			noun: "a duration such as 5s or 100ms", tags: text,
			parse: func(text string) (any, error) { return time.ParseDuration(text) },
			schema: []jsonSchema{
				{"type": "string", "pattern": `^(0|[+-]?(([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|ms|s|m|h))+)$`},
				{"const": 0},
			},
		}, true
	case t == bytesType:
		return scalar{
			noun: "a size such as 64Mi", tags: slices.Concat(text, number), parse: parseBytes,
			schema: []jsonSchema{{"type": "string", "pattern": sizePattern.String()}, {"type": "integer", "minimum": 0}},
		}, true
	case t == resourceType, t == reflect.TypeFor[schema.GroupResource]():
		parse := func(text string) (any, error) { return parseResource(text) }
		if t != resourceType {
			parse = func(text string) (any, error) { return parseGroupResource(text) }
		}
		return scalar{
			noun: "a resource such as apps/v1/deployments", tags: text, parse: parse, explains: true,
			schema: []jsonSchema{{"type": "string", "pattern": `^([^/ ]+/)?[^/ ]+/[^/ ]+$|^([a-z][a-z0-9-]*|\*\.[a-z0-9-]+)(\.[a-z0-9.-]+)?$`, "examples": []string{"apps/v1/deployments", "v1/pods", "apps/*"}}},
		}, true
	case t == reflect.TypeFor[fieldpath.Path]():
		path.parse = func(text string) (any, error) { return fieldpath.Parse(text) }
		return path, true
	case t == reflect.TypeFor[ChangedPath]():
		path.parse = func(text string) (any, error) {
			if text == "*" {
				return ChangedPath{}, nil
			}
			parsed, err := fieldpath.Parse(text)
			return ChangedPath{parsed}, err
		}
		return path, true
	}
	switch t.Kind() {
	case reflect.Bool:
		return scalar{
			noun: "true or false", tags: []string{"!!bool"}, schema: []jsonSchema{{"type": "boolean"}},
			parse: func(text string) (any, error) { return strconv.ParseBool(text) },
		}, true
	case reflect.Float64:
		return scalar{
			noun: "a number", tags: number, schema: []jsonSchema{{"type": "number"}},
			parse: func(text string) (any, error) { return strconv.ParseFloat(text, 64) },
		}, true
	case reflect.Int, reflect.Int64:
		return scalar{
			noun: "a whole number", tags: number, schema: []jsonSchema{{"type": "integer"}},
			parse: func(text string) (any, error) { return strconv.ParseInt(text, 10, t.Bits()) },
		}, true
	case reflect.String:
		return scalar{
			noun: "a string", tags: text, schema: []jsonSchema{{"type": "string"}},
			parse: func(text string) (any, error) { return text, nil },
		}, true
	default:
		return scalar{}, false
	}
}

// scalar decodes n. Text that came from outside the file is read as the type of v. Text in the file must have that type in YAML: a password
// 0123 would be a number, and a topic 2026-01-01 a time.
func (d *decoder) scalar(n *node, path string, v reflect.Value, s scalar, key field) {
	if err := d.expand(n); err != nil {
		d.faults.addBroken(n, path, "%v", err)
		return
	}
	isDuration := v.Type() == durationType
	fits := slices.Contains(s.tags, n.tag) || slices.Contains(key.enum, n.text) || isDuration && n.text == "0"
	switch {
	case n.missing != nil:
		d.warnings.report(Fault{
			File: d.warnings.file, Line: n.line, Column: n.column, Path: path,
			Message: fmt.Sprintf("not checked: %v", n.missing), Unset: true,
		})
		d.faults.setBroken(path)
		if v.Kind() == reflect.String && len(key.enum) == 0 {
			v.SetString(n.text) // what is beside it may need it not to be empty
		}
	case n.isNull():
		d.faults.addBroken(n, path, "has no value")
	case n.kind != yaml.ScalarNode || !n.expanded && !fits:
		hint := ""
		switch {
		case n.kind != yaml.ScalarNode:
		case isDuration && strings.Contains("!!int !!float", n.tag):
			hint = fmt.Sprintf("; is it %ss?", n.text)
		case v.Kind() == reflect.String:
			hint = "; put it in quotes"
		}
		d.faults.addBroken(n, path, "must be %s, not %s%s", s.noun, nodeNoun(n), hint)
	case len(key.enum) > 0 && !slices.Contains(key.enum, n.text):
		d.faults.addBroken(n, path, "must be one of %s, not %s", strings.Join(key.enum, ", "), shown(n))
	default:
		value, err := s.parse(n.text)
		switch {
		case err == nil && key.takes(value, s):
			v.Set(reflect.ValueOf(value).Convert(v.Type()))
		case err == nil && key.max == "":
			d.faults.addBroken(n, path, "must be at least %s", key.min)
		case err == nil:
			d.faults.addBroken(n, path, "must be from %s to %s", key.min, key.max)
		case n.expanded:
			d.faults.addBroken(n, path, "must be %s, and the value of %s is not", s.noun, n.raw)
		case s.explains:
			d.faults.addBroken(n, path, "%v", err)
		default:
			d.faults.addBroken(n, path, "must be %s, not %s", s.noun, shown(n))
		}
	}
}

// kubectlName is a name of a resource that only the API server can resolve: deploy, widgets.example.com.
var kubectlName = regexp.MustCompile(`^[a-z][a-z0-9-]*(\.[a-z0-9.-]+)?$`)

func parseResource(text string) (schema.GroupVersionResource, error) {
	if all, ok := delta.ParseWildcard(text); ok {
		return all, nil
	}
	gvr, err := delta.ParseResource(text)
	if err != nil && kubectlName.MatchString(text) {
		return schema.GroupVersionResource{Resource: text}, nil
	}
	return gvr, err
}

// parseGroupResource drops the version, which may be missing, as in replicasets.apps.
func parseGroupResource(text string) (schema.GroupResource, error) {
	gvr, err := parseResource(text)
	if gvr.Version == "" && !delta.IsWildcard(gvr) {
		return schema.ParseGroupResource(gvr.Resource), err
	}
	return gvr.GroupResource(), err
}

// A quantity without the fractions below 1 and the exponents that a size does not need.
var sizePattern = regexp.MustCompile(`^\d{1,18}(\.\d{1,9})?([KMGTPE]i|[kMGTPE])?$`)

func parseBytes(text string) (any, error) {
	if !sizePattern.MatchString(text) {
		return nil, strconv.ErrSyntax
	}
	quantity, err := resource.ParseQuantity(text)
	if err == nil && quantity.Cmp(*resource.NewQuantity(math.MaxInt64, resource.BinarySI)) >= 0 {
		err = strconv.ErrRange
	}
	return quantity.Value(), err
}
