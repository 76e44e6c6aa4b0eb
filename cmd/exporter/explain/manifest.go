package explain

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/internal/delta"
)

// readManifest reads the objects of a file, or of standard input for "-": YAML or JSON, one or several, lists taken
// apart. Errors quote nothing of the content: it may be a Secret.
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
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 1024)
	for document := 1; ; document++ {
		var raw json.RawMessage
		err := decoder.Decode(&raw)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("%s: document %d is neither YAML nor JSON%s", name, document, mistake(err))
		}
		if len(raw) == 0 || string(raw) == "null" { // comments only
			continue
		}
		more, err := objectsOf(raw)
		if err != nil {
			return nil, fmt.Errorf("%s: document %d: %w", name, document, err)
		}
		objects = append(objects, more...)
	}
	if len(objects) == 0 {
		return nil, fmt.Errorf("%s: holds no object", name)
	}
	return objects, nil
}

var yamlLine = regexp.MustCompile(`: line \d+`)

// mistake returns the part of a decoder's error that quotes no more than a character: the line of the YAML document, or
// what is wrong with the JSON.
func mistake(err error) string {
	var wrongJSON yaml.JSONSyntaxError
	if errors.As(err, &wrongJSON) {
		return fmt.Sprintf(": at byte %d, %v", wrongJSON.Offset, wrongJSON.Err)
	}
	return yamlLine.FindString(err.Error())
}

// objectsOf returns an object, or the items of a list. apimachinery's errors are dropped, since they quote the object.
func objectsOf(raw []byte) ([]*delta.Object, error) {
	invalid := errors.New("not an object with apiVersion, kind and metadata, or a list of such")
	decoded, _, err := unstructured.UnstructuredJSONScheme.Decode(raw, nil, nil)
	if err != nil {
		return nil, invalid
	}
	var items []unstructured.Unstructured
	switch decoded := decoded.(type) {
	case *unstructured.Unstructured:
		items = append(items, *decoded)
	case *unstructured.UnstructuredList:
		items = decoded.Items
	}
	var objects []*delta.Object
	for _, item := range items {
		_, _, err := unstructured.NestedFieldNoCopy(item.Object, "metadata", "name") // an error if metadata is no map
		if err != nil || item.GetKind() == "" || item.GetAPIVersion() == "" {
			return nil, invalid
		}
		object, err := delta.NewObject(encoded(item.Object))
		if err != nil {
			return nil, invalid
		}
		objects = append(objects, object)
	}
	return objects, nil
}
