package pipeline

import (
	"strings"

	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// hiddenValues are the texts that a pipeline's redact transforms take out of an object. An explanation, which people
// paste into tickets, does not show them anywhere before they are digests either.
type hiddenValues struct{ texts map[string]bool }

// hiddenText stands in the place of such a value.
const hiddenText = "(hidden: a redact is for it)"

// minHiddenPart is how long a text must be to be looked for inside other texts: shorter ones are found everywhere.
const minHiddenPart = 6

// add takes note of what a transform would redact in an object.
func (h *hiddenValues) add(transform Transform, object map[string]any) {
	redact, ok := transform.(RedactTransform)
	if !ok {
		return
	}
	for _, path := range append(redact.Paths[:len(redact.Paths):len(redact.Paths)], lastAppliedPath()) {
		path.Visit(object, h.addValue)
	}
}

func (h *hiddenValues) addValue(value any) {
	switch value := value.(type) {
	case string:
		if h.texts == nil {
			h.texts = map[string]bool{}
		}
		if value != "" && !isDigest(value) {
			h.texts[value] = true
		}
	case map[string]any:
		for _, member := range value {
			h.addValue(member)
		}
	case []any:
		for _, item := range value {
			h.addValue(item)
		}
	}
}

// hide puts the mark in the place of what transforms are about to redact.
func hide(transforms []Transform, object map[string]any) {
	for _, transform := range transforms {
		redact, ok := transform.(RedactTransform)
		if !ok {
			continue
		}
		for _, path := range append(redact.Paths[:len(redact.Paths):len(redact.Paths)], lastAppliedPath()) {
			_ = path.Replace(object, func(value any) (any, error) { // it cannot fail
				if text, ok := value.(string); ok && isDigest(text) {
					return text, nil
				}
				return hiddenText, nil
			})
		}
	}
}

// mask returns a copy of a decoded value without the texts.
func (h *hiddenValues) mask(value any) any {
	if len(h.texts) == 0 {
		return value
	}
	switch value := value.(type) {
	case string:
		if h.texts[value] {
			return hiddenText
		}
		for text := range h.texts {
			if len(text) >= minHiddenPart && strings.Contains(value, text) {
				return hiddenText
			}
		}
		return value
	case map[string]any:
		masked := make(map[string]any, len(value))
		for name, member := range value {
			masked[name] = h.mask(member)
		}
		return masked
	case []any:
		masked := make([]any, len(value))
		for i, item := range value {
			masked[i] = h.mask(item)
		}
		return masked
	default:
		return value
	}
}

// maskObject is mask for an object, which may be nil.
func (h *hiddenValues) maskObject(object map[string]any) map[string]any {
	if object == nil {
		return nil
	}
	masked, _ := h.mask(fieldpath.Clone(object)).(map[string]any)
	return masked
}
