package explain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// readManifest reads the objects of a file, or of standard input for "-": YAML or JSON, one or several, lists taken
// apart. Errors name the line, and nothing of the content: it may be a Secret.
func readManifest(path string, stdin io.Reader) ([]*delta.Object, error) {
	name, read := path, func() ([]byte, error) { return os.ReadFile(path) }
	if path == "-" {
		name, read = "standard input", func() ([]byte, error) { return io.ReadAll(stdin) }
	}
	data, err := read()
	if err != nil {
		return nil, fmt.Errorf("%s: cannot be read: %w", name, withoutPath(err))
	}
	documents, err := splitManifest(data)
	if err != nil {
		return nil, fmt.Errorf("%s:%w", name, err)
	}
	var objects []*delta.Object
	for _, document := range documents {
		more, err := document.objects()
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, document.line, err)
		}
		objects = append(objects, more...)
	}
	if len(objects) == 0 {
		return nil, fmt.Errorf("%s: holds no object", name)
	}
	return objects, nil
}

// withoutPath is what stands in the way, without the path that the message names already.
func withoutPath(err error) error {
	var wrong *os.PathError
	if errors.As(err, &wrong) {
		return wrong.Err
	}
	return err
}

// document is one of the documents of a file, as JSON.
type document struct {
	line int // where it begins
	json []byte
}

// lineError is a mistake in a line.
type lineError struct {
	line    int
	message string
}

func (e *lineError) Error() string { return fmt.Sprintf("%d: %s", e.line, e.message) }

// splitManifest reads JSON as JSON, so that numbers and escapes stay as they are, and anything else as YAML.
func splitManifest(data []byte) ([]document, error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf"))
	trimmed := bytes.TrimSpace(data)
	if !bytes.HasPrefix(trimmed, []byte("{")) && !bytes.HasPrefix(trimmed, []byte("[")) {
		return splitYAML(data)
	}
	documents, err := splitJSON(data)
	if err == nil {
		return documents, nil
	}
	if flow, flowErr := splitYAML(data); flowErr == nil { // {a: b} is YAML
		return flow, nil
	}
	return nil, err
}

func splitJSON(data []byte) ([]document, error) {
	var documents []document
	decoder := json.NewDecoder(bytes.NewReader(data))
	for {
		begin := int(decoder.InputOffset())
		begin += len(data[begin:]) - len(bytes.TrimLeft(data[begin:], " \t\r\n"))
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			return documents, nil
		}
		if err != nil {
			at, message := len(data), "it ends too early"
			var wrong *json.SyntaxError
			if errors.As(err, &wrong) {
				message = wrong.Error()
				// The offset counts from where Decode began to read on some errors, so it is looked for anew.
				if check := json.Unmarshal(data[begin:], new(any)); errors.As(check, &wrong) {
					at, message = begin+int(wrong.Offset), wrong.Error()
				}
			}
			return nil, &lineError{lineOf(data, at), "not valid JSON: " + message}
		}
		documents = append(documents, document{lineOf(data, begin), raw})
	}
}

func lineOf(data []byte, offset int) int {
	return 1 + bytes.Count(data[:min(offset, len(data))], []byte("\n"))
}

var (
	separator = regexp.MustCompile(`^---(\s|$)`)
	yamlError = regexp.MustCompile(`^(?:error converting YAML to JSON: )?(?:yaml: )?(?:line (\d+): )?(?s:(.*))`)
	// quoted finds what an error may quote of the file; single characters are those of the grammar.
	quoted = regexp.MustCompile("'[^']{2,}'|\"[^\"]*\"|`[^`]*`")
)

func splitYAML(data []byte) ([]document, error) {
	var documents []document
	var part []byte
	begin := 1
	end := func() error {
		if len(bytes.TrimSpace(part)) == 0 {
			return nil
		}
		raw, err := yaml.ToJSON(part) // with the rules of YAML that kubectl has
		if err != nil {
			return yamlFault(part, err, begin)
		}
		if !json.Valid(raw) {
			return &lineError{begin, "neither YAML nor JSON"}
		}
		if string(raw) != "null" { // comments only
			documents = append(documents, document{begin + blankLines(part), raw})
		}
		return nil
	}
	line := 0
	for text := range bytes.Lines(data) {
		line++
		if !separator.Match(text) {
			part = append(part, text...)
			continue
		}
		if err := end(); err != nil {
			return nil, err
		}
		part, begin = append([]byte(nil), bytes.TrimPrefix(text, []byte("---"))...), line
	}
	return documents, end()
}

// blankLines counts the lines before the first that says something.
func blankLines(part []byte) int {
	n := 0
	for line := range bytes.Lines(part) {
		if text := bytes.TrimSpace(line); len(text) > 0 && text[0] != '#' {
			break
		}
		n++
	}
	return n
}

// maxFaultSearch is how many bytes may be read again to find the line of a mistake: well under a second's worth.
const maxFaultSearch = 4 << 20

// yamlFault says what is wrong with a document that begins in a line, and where: in the line after the longest beginning
// that can be read. The line of the error, if it has one, is where the construct around the mistake begins.
func yamlFault(part []byte, err error, begin int) error {
	match := yamlError.FindStringSubmatch(err.Error())
	message, _, _ := strings.Cut(match[2], "\n")
	message = quoted.ReplaceAllString(message, sinks.Undisclosed)
	if before, _, found := strings.Cut(message, "map key"); found {
		message = before + "map key that is no text"
	}
	line := begin
	if n, noLine := strconv.Atoi(match[1]); noLine == nil {
		line += n - 1
	}
	lines := bytes.SplitAfter(part, []byte("\n"))
	end, budget := len(part), maxFaultSearch
	for n := len(lines) - 1; n > 0 && budget > 0; n-- {
		end -= len(lines[n])
		budget -= end
		if _, err := yaml.ToJSON(part[:end]); err == nil {
			line = begin + n
			break
		}
	}
	return &lineError{line, "not valid YAML: " + message}
}

// objects of a document: one, or the items of a list.
func (d document) objects() ([]*delta.Object, error) {
	var head struct {
		APIVersion string          `json:"apiVersion"`
		Kind       string          `json:"kind"`
		Items      json.RawMessage `json:"items"`
	}
	if !bytes.HasPrefix(bytes.TrimSpace(d.json), []byte("{")) {
		return nil, errors.New("not an object with apiVersion and kind")
	}
	if err := json.Unmarshal(d.json, &head); err != nil {
		return nil, errors.New("apiVersion and kind must be text")
	}
	var items []json.RawMessage
	if !strings.HasSuffix(head.Kind, "List") || json.Unmarshal(head.Items, &items) != nil {
		object, err := newObject(d.json)
		if err != nil {
			return nil, err
		}
		return []*delta.Object{object}, nil
	}
	var objects []*delta.Object
	for i, item := range items {
		var err error
		if head.Kind != "List" { // a PodList need not say that its items are Pods
			item, err = withKind(item, head.APIVersion, strings.TrimSuffix(head.Kind, "List"))
		}
		if err == nil {
			var object *delta.Object
			object, err = newObject(item)
			objects = append(objects, object)
		}
		if err != nil {
			return nil, fmt.Errorf("items[%d]: %w", i, err)
		}
	}
	return objects, nil
}

func withKind(raw []byte, apiVersion, kind string) ([]byte, error) {
	var members map[string]json.RawMessage
	if err := json.Unmarshal(raw, &members); err != nil || members == nil {
		return nil, errors.New("not an object")
	}
	for name, value := range map[string]string{"apiVersion": apiVersion, "kind": kind} {
		if _, ok := members[name]; !ok {
			members[name], _ = json.Marshal(value) // of a string: it cannot fail
		}
	}
	return json.Marshal(members)
}

func newObject(raw []byte) (*delta.Object, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false) // like the API server, and unlike the conversion from YAML
	decoder := json.NewDecoder(bytes.NewReader(raw))
	decoder.UseNumber()
	var content map[string]any
	if err := decoder.Decode(&content); err != nil {
		return nil, errors.New("not an object with apiVersion and kind")
	}
	for _, name := range []string{"kind", "apiVersion"} {
		if text, _ := content[name].(string); text == "" {
			return nil, fmt.Errorf("the object has no %s", name)
		}
	}
	if metadata, ok := content["metadata"]; ok {
		if _, isMap := metadata.(map[string]any); !isMap {
			return nil, errors.New("metadata is no map")
		}
	}
	if err := encoder.Encode(content); err != nil {
		return nil, errors.New("the object cannot be written as JSON")
	}
	object, err := delta.NewObject(bytes.TrimSpace(b.Bytes()))
	if err != nil {
		return nil, fmt.Errorf("not an object: %w", err)
	}
	return object, nil
}
