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

// scalar decodes n. Text that came from outside the file is read as whatever v needs; other text must look like it
// in YAML too, so that a password 0123 or a topic 2026-01-01 is not taken for something else.
func (d *decoder) scalar(n *node, path string, v reflect.Value, enum []string) {
	complain := func(message string) { d.faults.add(n, path, message) }
	if n.isNull() {
		complain("has no value")
		return
	}
	if n.kind != yaml.ScalarNode {
		complain(fmt.Sprintf("must be %s, not %s", typeNoun(v.Type()), nodeNoun(n)))
		return
	}
	if message := tagFault(n, v.Type()); message != "" {
		complain(message)
		return
	}
	if len(enum) > 0 && !slices.Contains(enum, n.text) {
		complain(enumFault(n, enum))
		return
	}
	if err := set(v, n.text); err != nil {
		switch {
		case n.expanded:
			complain(fmt.Sprintf("must be %s, and the value of %s is not", typeNoun(v.Type()), n.raw))
		case v.Type() == resourceType:
			complain(err.Error())
		case v.Type() == pathType:
			complain(pathFault(n.text, err))
		default:
			complain(fmt.Sprintf("must be %s, not %s", typeNoun(v.Type()), shown(n)))
		}
	}
}

// tagFault says what is wrong if YAML takes n for something else than t needs.
func tagFault(n *node, t reflect.Type) string {
	if n.expanded || n.tag == "!!str" && t.Kind() != reflect.Bool && !isNumber(t) {
		return ""
	}
	wrong := fmt.Sprintf("must be %s, not %s", typeNoun(t), nodeNoun(n))
	switch {
	case t == bytesType && (n.tag == "!!int" || n.tag == "!!float"), t == durationType && n.text == "0",
		t.Kind() == reflect.Bool && n.tag == "!!bool", isNumber(t) && n.tag == "!!int":
		return ""
	case t == durationType && (n.tag == "!!int" || n.tag == "!!float"):
		return wrong + fmt.Sprintf("; is it %ss?", n.text)
	case n.tag != "!!str" && t.Kind() == reflect.String:
		return wrong + "; put it in quotes"
	case n.tag == "!!str" && set(reflect.New(t).Elem(), n.text) == nil:
		return wrong + "; remove the quotes"
	case n.tag == "!!str" || n.tag == "!!float":
		return fmt.Sprintf("must be %s, not %s", typeNoun(t), shown(n))
	default:
		return wrong
	}
}

func isNumber(t reflect.Type) bool {
	return t != durationType && t != bytesType && t.Kind() >= reflect.Int && t.Kind() <= reflect.Uint64
}

func enumFault(n *node, enum []string) string {
	if len(enum) == 1 {
		return fmt.Sprintf("must be %s, not %s", enum[0], shown(n))
	}
	last := len(enum) - 1
	return fmt.Sprintf("must be %s or %s, not %s", strings.Join(enum[:last], ", "), enum[last], shown(n))
}

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
		gvr, err := delta.ParseResource(text)
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
		switch text {
		case "true", "false":
			v.SetBool(text == "true")
		default:
			return strconv.ErrSyntax
		}
	case v.CanInt():
		number, err := strconv.ParseInt(text, 10, v.Type().Bits())
		if err != nil {
			return err
		}
		v.SetInt(number)
	case v.CanUint():
		number, err := strconv.ParseUint(text, 10, v.Type().Bits())
		if err != nil {
			return err
		}
		v.SetUint(number)
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
