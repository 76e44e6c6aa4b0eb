package config

import (
	"encoding"
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

var (
	durationType = reflect.TypeFor[time.Duration]()
	bytesType    = reflect.TypeFor[sinks.Bytes]()
	resourceType = reflect.TypeFor[schema.GroupVersionResource]()
	pathType     = reflect.TypeFor[fieldpath.Path]()
)

// scalar decodes n. Text that came from outside the file is read as the type of v. Text in the file must have that type in YAML: a password
// 0123 would be a number, and a topic 2026-01-01 a time.
func (d *decoder) scalar(n *node, path string, v reflect.Value, enum []string) {
	t := v.Type()
	if err := d.expand(n); err != nil {
		d.faults.addBroken(n, path, "%v", err)
		return
	}
	switch {
	case n.missing != nil:
		d.warnings.report(Fault{
			File: d.warnings.file, Line: n.line, Column: n.column, Path: path,
			Message: fmt.Sprintf("not checked: %v", n.missing), Unset: true,
		})
		d.faults.setBroken(path)
		if t.Kind() == reflect.String && len(enum) == 0 {
			v.SetString(n.text) // what is beside it may need it not to be empty
		}
	case n.isNull():
		d.faults.addBroken(n, path, "has no value")
	case n.kind != yaml.ScalarNode || !n.expanded && !tagFits(n, t) && !slices.Contains(enum, n.text):
		d.faults.addBroken(n, path, "must be %s, not %s%s", typeNoun(t), nodeNoun(n), scalarHint(n, t))
	case len(enum) > 0 && !slices.Contains(enum, n.text):
		d.faults.addBroken(n, path, "must be one of %s, not %s", strings.Join(enum, ", "), shown(n))
	default:
		if err := set(v, n.text); err != nil {
			d.faults.addBroken(n, path, "%s", setFault(n, t, err))
		}
	}
}

// tagFits reports whether YAML takes n for what t needs.
func tagFits(n *node, t reflect.Type) bool {
	switch {
	case t == durationType && n.text == "0":
		return true
	case n.tag == "!!int" || n.tag == "!!float":
		return t == bytesType || isNumber(t)
	case t.Kind() == reflect.Bool:
		return n.tag == "!!bool"
	default:
		return n.tag == "!!str" && !isNumber(t)
	}
}

func scalarHint(n *node, t reflect.Type) string {
	switch {
	case n.kind != yaml.ScalarNode:
		return ""
	case t == durationType && (n.tag == "!!int" || n.tag == "!!float"):
		return fmt.Sprintf("; is it %ss?", n.text)
	case t.Kind() == reflect.String:
		return "; put it in quotes"
	default:
		return ""
	}
}

// setFault describes an error of set.
func setFault(n *node, t reflect.Type, err error) string {
	switch {
	case n.expanded:
		return fmt.Sprintf("must be %s, and the value of %s is not", typeNoun(t), n.raw)
	case t == resourceType, t == pathType, t == reflect.TypeFor[ChangedPath]():
		return err.Error()
	default:
		return fmt.Sprintf("must be %s, not %s", typeNoun(t), shown(n))
	}
}

func isNumber(t reflect.Type) bool {
	return t != durationType && t != bytesType && (t.Kind() == reflect.Int || t.Kind() == reflect.Int64 || t.Kind() == reflect.Float64)
}

// kubectlName is a name of a resource that only the API server can resolve: deploy, widgets.example.com.
var kubectlName = regexp.MustCompile(`^[a-z][a-z0-9-]*(\.[a-z0-9.-]+)?$`)

// set parses text into v. Its error may hold the text.
func set(v reflect.Value, text string) error {
	switch v.Type() {
	case durationType:
		duration, err := time.ParseDuration(text)
		v.SetInt(int64(duration))
		return err
	case bytesType:
		size, err := parseBytes(text)
		v.SetInt(size)
		return err
	case resourceType:
		if all, ok := delta.ParseWildcard(text); ok {
			v.Set(reflect.ValueOf(all))
			return nil
		}
		gvr, err := delta.ParseResource(text)
		if err != nil && kubectlName.MatchString(text) {
			gvr, err = schema.GroupVersionResource{Resource: text}, nil
		}
		v.Set(reflect.ValueOf(gvr))
		return err
	}
	if u, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		return u.UnmarshalText([]byte(text))
	}
	switch {
	case v.Kind() == reflect.String:
		v.SetString(text)
	case v.Kind() == reflect.Bool:
		value, err := strconv.ParseBool(text)
		v.SetBool(value)
		return err
	case v.CanFloat():
		number, err := strconv.ParseFloat(text, 64)
		v.SetFloat(number)
		return err
	case v.CanInt():
		number, err := strconv.ParseInt(text, 10, v.Type().Bits())
		v.SetInt(number)
		return err
	}
	return nil
}

// A quantity without the fractions below 1 and the exponents that a size does not need.
var sizePattern = regexp.MustCompile(`^\d{1,18}(\.\d{1,9})?([KMGTPE]i|[kMGTPE])?$`)

func parseBytes(text string) (int64, error) {
	if !sizePattern.MatchString(text) {
		return 0, strconv.ErrSyntax
	}
	quantity, err := resource.ParseQuantity(text)
	if err != nil {
		return 0, err
	}
	if quantity.Cmp(*resource.NewQuantity(math.MaxInt64, resource.BinarySI)) >= 0 {
		return 0, strconv.ErrRange
	}
	return quantity.Value(), nil
}
