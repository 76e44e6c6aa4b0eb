package config

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// maxExpansion bounds the file of a ${file:…}: keys and passwords are small.
const maxExpansion = 1 << 20

// expand replaces ${NAME} and ${file:/path} in a scalar, once: what comes in is not expanded again. A missing one stands for
// itself if that is allowed.
func (d *decoder) expand(n *node) error {
	var missing error
	find := func(name string) (string, error) {
		value, err := lookup(name, d.getenv)
		if d.allowUnset && (errors.Is(err, errUnset) || errors.Is(err, fs.ErrNotExist)) {
			missing = cmp.Or(missing, err)
			return "${" + name + "}", nil
		}
		return value, err
	}
	text, secrets, err := expandText(n.text, find)
	if len(secrets) > 0 {
		n.expanded, n.secrets = true, append(secrets, secret{text, n.text})
	}
	n.text, n.missing = text, missing
	return err
}

var reference = regexp.MustCompile(`\$\$\{|\$\{[^}]*\}?`)

// expandText reads from left to right: "$${" is a literal "${", any other "$" that does not begin "${" stands for itself.
func expandText(text string, find func(name string) (string, error)) (expanded string, secrets []secret, err error) {
	expanded = reference.ReplaceAllStringFunc(text, func(match string) string {
		name, closed := strings.CutSuffix(match[2:], "}")
		switch {
		case err != nil:
			return ""
		case match == "$${":
			return "${"
		case !closed:
			err = errors.New("has a ${ without a }; a literal ${ is written $${")
			return ""
		}
		var value string
		value, err = find(name)
		secrets = append(secrets, secret{value, match})
		return value
	})
	return expanded, secrets, err
}

var errUnset = errors.New("is not set")

func lookup(name string, getenv func(string) (string, bool)) (string, error) {
	if path, ok := strings.CutPrefix(name, "file:"); ok {
		return readExpansion(path)
	}
	if !variable.MatchString(name) {
		return "", fmt.Errorf("${%s} is neither ${NAME} nor ${file:/path}; a literal ${ is written $${", name)
	}
	value, ok := getenv(name)
	if !ok {
		return "", fmt.Errorf("the environment variable %s %w", name, errUnset)
	}
	return value, nil
}

var variable = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// readExpansion returns a file's text without one trailing line break.
func readExpansion(path string) (string, error) {
	reference := "${file:" + path + "}"
	if !filepath.IsAbs(path) {
		return "", fmt.Errorf("%s: the path must be absolute", reference)
	}
	info, err := os.Stat(path)
	switch {
	case err != nil:
	case !info.Mode().IsRegular(): // a pipe or a device could block or never end
		return "", fmt.Errorf("%s is not a regular file", reference)
	case info.Size() > maxExpansion:
		return "", fmt.Errorf("%s is larger than 1Mi", reference)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s cannot be read: %w", reference, WithoutPath(err))
	}
	text, found := strings.CutSuffix(string(data), "\n")
	if found {
		text = strings.TrimSuffix(text, "\r")
	}
	return text, nil
}

// WithoutPath returns the cause of an error of a file, for messages that begin with its path.
func WithoutPath(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}
