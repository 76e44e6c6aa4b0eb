package delta

import (
	"bytes"
	"encoding/json"
)

// EncodeJSON returns decoded JSON as the API server writes it: keys sorted, and <, > and & as they are. Its error may
// quote the value.
func EncodeJSON(value any) ([]byte, error) {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}
