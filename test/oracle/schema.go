package oracle

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/kubeferry/kubeferry/test/internal/programs"
)

// published is the schema that consumers get, made strict: for them a member that it does not have is one of a later
// version, here it is one that is not described.
var published = sync.OnceValues(func() (*jsonschema.Schema, error) {
	root, err := programs.Root()
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "schema", "records.schema.json"))
	if err != nil {
		return nil, err
	}
	open := []byte(`"unevaluatedProperties": true`)
	if !bytes.Contains(text, open) {
		return nil, fmt.Errorf("the schema has no %s to make strict", open)
	}
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(bytes.ReplaceAll(text, open, []byte(`"unevaluatedProperties": false`))))
	if err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("records.schema.json", document); err != nil {
		return nil, err
	}
	return compiler.Compile("records.schema.json")
})

// validate checks a record against docs/schema/records.schema.json.
func validate(body []byte) error {
	schema, err := published()
	if err != nil {
		return err
	}
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(body))
	if err != nil {
		return err
	}
	if err := schema.Validate(value); err != nil {
		return fmt.Errorf("%w, in %.1000s", err, body)
	}
	return nil
}
