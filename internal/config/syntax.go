package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"gopkg.in/yaml.v3"
)

// parseYAML reads the one document of a file. A file without one is a null.
func parseYAML(data []byte) (*yaml.Node, *Fault) {
	if len(data) > maxFileBytes {
		return nil, &Fault{Line: 1, Column: 1, Message: "the file is larger than 4Mi"}
	}
	if fault := textFault(data); fault != nil {
		return nil, fault
	}
	documents, err := readDocuments(data)
	switch {
	case err != nil:
		return nil, syntaxFault(data, err)
	case len(documents) == 0:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Line: 1, Column: 1}, nil
	case len(documents) > 1:
		second := documents[1]
		return nil, &Fault{Line: second.Line, Column: second.Column, Message: "a second document begins here; the configuration is one document"}
	case len(documents[0].Content) != 1:
		return nil, &Fault{Line: 1, Column: 1, Message: "not a YAML document"}
	}
	return documents[0].Content[0], nil
}

// readDocuments reads at most two documents: a second one is a fault already.
func readDocuments(data []byte) (documents []*yaml.Node, err error) {
	defer func() {
		if r := recover(); r != nil { // yaml.v3 panics where it finds itself inconsistent
			err = fmt.Errorf("yaml: %v", r)
		}
	}()
	reader := yaml.NewDecoder(bytes.NewReader(data))
	for len(documents) < 2 {
		var document yaml.Node
		if err := reader.Decode(&document); errors.Is(err, io.EOF) {
			return documents, nil
		} else if err != nil {
			return nil, err
		}
		documents = append(documents, &document)
	}
	return documents, nil
}

// textFault finds bytes that are no text, for which the YAML reader has no line.
func textFault(data []byte) *Fault {
	line, start := 1, 0
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		switch {
		case r == '\n':
			line, start = line+1, i+1
		case r == utf8.RuneError && size == 1:
			return &Fault{Line: line, Column: i - start + 1, Message: "not UTF-8 text"}
		case r < ' ' && r != '\t' && r != '\r', r == 0x7f:
			return &Fault{Line: line, Column: i - start + 1, Message: fmt.Sprintf("control character %U", r)}
		}
		i += size
	}
	return nil
}

var syntaxError = regexp.MustCompile(`^(?:yaml: )?(?:line (\d+): )?(.*)`)

// maxSyntaxSearch is how many bytes may be read again to find the line of a mistake: about half a second's worth.
const maxSyntaxSearch = 8 << 20

// syntaxFault says where the YAML stops making sense. The line that yaml.v3 names is where the construct around the
// mistake begins, which may be the first line of the file; so the line looked for is the one after the longest
// beginning of the file that can be read.
func syntaxFault(data []byte, err error) *Fault {
	match := syntaxError.FindStringSubmatch(strings.SplitN(err.Error(), "\n", 2)[0])
	message := strings.TrimPrefix(match[2], "yaml: ")
	line, convErr := strconv.Atoi(match[1])
	if convErr != nil {
		line = 1
	}
	lines := bytes.SplitAfter(data, []byte("\n"))
	end, budget := len(data), maxSyntaxSearch
	for n := len(lines); n > 0 && budget > 0; n-- {
		end -= len(lines[n-1])
		budget -= end
		if _, err := readDocuments(data[:end]); err == nil {
			line = n
			break
		}
	}
	if line <= len(lines) && bytes.HasPrefix(bytes.TrimLeft(lines[line-1], " "), []byte("\t")) {
		message += "; indent with spaces, not with tabs"
	}
	return &Fault{Line: line, Column: 1, Message: "not valid YAML: " + message}
}
