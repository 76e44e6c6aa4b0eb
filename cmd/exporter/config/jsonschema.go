package config

import (
	"encoding/json"
	"fmt"
	"reflect"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// Schema returns the JSON Schema (draft 2020-12) of the file, made from the types that the file is decoded into. It
// is stricter than a syntax check and laxer than [Load]: references, selectors and combinations are not in it.
func Schema(kinds []sinks.Kind) ([]byte, error) {
	s := schemaWriter{kinds: kinds}
	root := s.value(newValue(reflect.TypeFor[Config]()), nil)
	root["$schema"] = "https://json-schema.org/draft/2020-12/schema"
	root["title"] = "kubeferry configuration"
	root["type"] = "object"
	data, err := json.MarshalIndent(root, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("write schema: %w", err)
	}
	return append(data, '\n'), nil
}

type jsonSchema map[string]any

type schemaWriter struct{ kinds []sinks.Kind }

// value is the schema of what can be decoded into v; the defaults are what v holds.
func (s schemaWriter) value(v reflect.Value, enum []string) jsonSchema {
	t := v.Type()
	if scalar, ok := scalarOf(t); ok {
		return scalarSchema(scalar, enum)
	}
	switch {
	case t == reflect.TypeFor[Sink]():
		return s.sink()
	case reflect.PointerTo(t).Implements(reflect.TypeFor[entryDecoder]()):
		return jsonSchema{"type": "object", "minProperties": 1, "additionalProperties": jsonSchema{"type": "string"}}
	}
	switch t.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			v = newValue(t.Elem())
		} else {
			v = v.Elem()
		}
		schema := s.value(v, enum)
		if v.Kind() == reflect.Struct {
			schema["type"] = "object" // a null is refused: see decoder.value
		}
		return schema
	case reflect.Slice:
		list := jsonSchema{"type": "array", "items": s.value(newValue(t.Elem()), enum)}
		if v.Len() == 0 {
			list["minItems"] = 1 // see decoder.value
		}
		return list
	case reflect.Map:
		return jsonSchema{"type": "object", "additionalProperties": s.value(newValue(t.Elem()), nil)}
	case reflect.Struct:
		return s.structure(v)
	default:
		return jsonSchema{}
	}
}

func (s schemaWriter) structure(v reflect.Value) jsonSchema {
	properties := jsonSchema{}
	var required []string
	for _, key := range fieldsOf(v.Type()) {
		value := v.FieldByIndex(key.index)
		property := s.value(value, key.enum)
		if key.doc != "" {
			property["description"] = key.doc
		}
		if def := defaultOf(value); def != nil {
			property["default"] = def
		}
		if key.required {
			required = append(required, key.name)
		}
		properties[key.name] = property
	}
	schema := jsonSchema{"type": []string{"object", "null"}, "properties": properties, "additionalProperties": false}
	switch v.Type() {
	case reflect.TypeFor[Filter]():
		// Exactly one key is required, but for onError, which goes with expr.
		var oneOf []jsonSchema
		for _, name := range fieldNames(fieldsOf(v.Type())) {
			if name != "onError" {
				oneOf = append(oneOf, jsonSchema{"required": []string{name}})
			}
		}
		schema["type"], schema["oneOf"] = "object", oneOf
		schema["dependentRequired"] = map[string][]string{"onError": {"expr"}}
	case reflect.TypeFor[Transform]():
		schema["type"], schema["minProperties"], schema["maxProperties"] = "object", 1, 1
	}
	if required != nil {
		schema["type"], schema["required"] = "object", required
	}
	return schema
}

// sink is a mapping of a name and exactly one kind.
func (s schemaWriter) sink() jsonSchema {
	properties := jsonSchema{"name": jsonSchema{"type": "string", "description": "name that pipelines use"}}
	oneOf := []jsonSchema{}
	for _, kind := range s.kinds {
		property := s.value(reflect.ValueOf(kind.New()), nil)
		property["description"] = "deliver with the sink " + kind.Name
		properties[kind.Name] = property
		oneOf = append(oneOf, jsonSchema{"required": []string{kind.Name}})
	}
	return jsonSchema{
		"type": "object", "properties": properties, "additionalProperties": false,
		"required": []string{"name"}, "oneOf": oneOf,
	}
}

// scalarSchema accepts a ${…} wherever the value is not text anyway.
func scalarSchema(s scalar, enum []string) jsonSchema {
	exact := s.schema
	if len(enum) > 0 {
		exact = []jsonSchema{{"enum": enum}}
	}
	if only := exact[0]; len(only) == 1 && only["type"] == "string" {
		return only
	}
	return jsonSchema{"anyOf": append(exact, jsonSchema{"type": "string", "pattern": `\$\{`})}
}

// defaultOf is the value of v as the file would have it; nil for nothing.
func defaultOf(v reflect.Value) any {
	switch {
	case v.Type() == durationType:
		return time.Duration(v.Int()).String()
	case v.Type() == bytesType:
		return resource.NewQuantity(v.Int(), resource.BinarySI).String()
	case v.Kind() == reflect.String && v.IsZero():
		return nil
	case v.Kind() == reflect.Slice && v.Len() > 0 && v.Type().Elem() == resourceType:
		var names []string
		for i := range v.Len() {
			names = append(names, delta.ResourceName(v.Index(i).Interface().(schema.GroupVersionResource)))
		}
		return names
	case v.Kind() == reflect.Slice && v.Len() > 0 && v.Type().Elem().Kind() == reflect.String:
		return v.Interface()
	}
	if _, ok := scalarOf(v.Type()); ok {
		return v.Interface()
	}
	return nil
}
