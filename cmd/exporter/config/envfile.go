package config

import (
	"fmt"
	"os"
	"strings"
)

// ReadEnvFile reads environment variables from a file as docker and kubectl do: lines KEY=VALUE, with nothing around the
// value that does not belong to it; comments and empty lines. Its error is a [Faults].
func ReadEnvFile(path string) (map[string]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, Faults{{File: path, Message: fmt.Sprintf("cannot be read: %v", WithoutPath(err))}}
	}
	variables := map[string]string{}
	var faults Faults
	for i, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if text := strings.TrimSpace(line); text == "" || text[0] == '#' {
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok || !variable.MatchString(key) {
			faults = append(faults, Fault{File: path, Line: i + 1, Message: "expected KEY=VALUE, or # and a comment"})
			continue
		}
		variables[key] = value
	}
	if faults != nil {
		return nil, faults
	}
	return variables, nil
}
