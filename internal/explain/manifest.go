package explain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kubeferry/kubeferry/internal/config"
	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/sinks"
)

// readManifest reads the objects of a file, or of standard input for "-": YAML or JSON, one or several, lists taken
// apart. Errors name the line, and quote nothing of the content: it may be a Secret.
func readManifest(path string, stdin io.Reader) ([]*delta.Object, error) {
	name, read := path, func() ([]byte, error) { return os.ReadFile(path) }
	if path == "-" {
		name, read = "standard input", func() ([]byte, error) { return io.ReadAll(stdin) }
	}
	data, err := read()
	if err != nil {
		return nil, fmt.Errorf("%s: cannot be read: %w", name, config.WithoutPath(err))
	}
	var objects []*delta.Object
	line := 1
	for _, document := range separator.Split(strings.TrimPrefix(string(data), "\ufeff"), -1) {
		more, at, err := readDocument(document)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, line+at, err)
		}
		objects = append(objects, more...)
		line += strings.Count(document, "\n")
	}
	if len(objects) == 0 {
		return nil, fmt.Errorf("%s: holds no object", name)
	}
	return objects, nil
}

// separator keeps the line's end in the document that follows, so that lines can be counted.
var separator = regexp.MustCompile(`(?m)^---(?:[ \t\r]|$)`)

// readDocument reads the objects of a YAML document, or of JSON values one after another. With an error it returns the
// number of lines before the mistake.
func readDocument(document string) (objects []*delta.Object, line int, err error) {
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(document), 1024)
	for {
		var raw json.RawMessage
		if err := decoder.Decode(&raw); errors.Is(err, io.EOF) {
			return objects, 0, nil
		} else if err != nil {
			line, err := syntaxError(document, err)
			return nil, line, err
		}
		if len(raw) == 0 || string(raw) == "null" { // comments only
			continue
		}
		more, err := objectsOf(raw)
		if err != nil {
			blank := len(document) - len(strings.TrimLeft(document, " \t\r\n"))
			return nil, strings.Count(document[:blank], "\n"), err
		}
		objects = append(objects, more...)
	}
}

var (
	yamlError = regexp.MustCompile(`yaml: (?:line (\d+): )?(?s:(.*))`)
	// quoted matches what an error may quote of the file; single characters are those of the grammar.
	quoted = regexp.MustCompile("'[^']{2,}'|\"[^\"]*\"|`[^`]*`|map key: .*")
)

// syntaxError returns the number of lines before a mistake, as far as the parser names it, and what is wrong there.
func syntaxError(document string, err error) (line int, _ error) {
	var wrongJSON yaml.JSONSyntaxError
	if errors.As(err, &wrongJSON) {
		return strings.Count(document[:min(int(wrongJSON.Offset), len(document))], "\n"), fmt.Errorf("not valid JSON: %w", wrongJSON.Err)
	}
	match := yamlError.FindStringSubmatch(err.Error())
	if match == nil {
		return 0, errors.New("neither YAML nor JSON")
	}
	if n, err := strconv.Atoi(match[1]); err == nil {
		line = n - 1
	}
	return line, errors.New("not valid YAML: " + quoted.ReplaceAllString(match[2], sinks.Undisclosed))
}

// objectsOf returns an object, or the items of a list. apimachinery's errors are dropped, since they quote the object.
func objectsOf(raw []byte) ([]*delta.Object, error) {
	decoded, _, err := unstructured.UnstructuredJSONScheme.Decode(raw, nil, nil)
	if runtime.IsMissingKind(err) {
		return nil, errors.New("the object has no kind")
	}
	if err != nil {
		return nil, errors.New("not an object with apiVersion and kind, or a list of such")
	}
	list, ok := decoded.(*unstructured.UnstructuredList)
	if !ok {
		object, err := newObject(decoded.(*unstructured.Unstructured))
		return []*delta.Object{object}, err
	}
	objects := make([]*delta.Object, len(list.Items))
	for i := range list.Items {
		item := &list.Items[i]
		if item.GetAPIVersion() == "" { // a SecretList need not repeat it
			item.SetAPIVersion(list.GetAPIVersion())
		}
		if objects[i], err = newObject(item); err != nil {
			return nil, fmt.Errorf("items[%d]: %w", i, err)
		}
	}
	return objects, nil
}

func newObject(object *unstructured.Unstructured) (*delta.Object, error) {
	switch metadata, ok := object.Object["metadata"]; {
	case object.GetKind() == "":
		return nil, errors.New("the object has no kind")
	case object.GetAPIVersion() == "":
		return nil, errors.New("the object has no apiVersion")
	case ok:
		if _, isMap := metadata.(map[string]any); !isMap {
			return nil, errors.New("metadata is no map")
		}
	}
	return delta.NewObject(encoded(object.Object))
}
