package delta

import (
	"bytes"
	"encoding/json"
)

// EncodeJSON encodes a value as the API server does: it sorts the keys, and does not escape <, > and &. Its error may
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
