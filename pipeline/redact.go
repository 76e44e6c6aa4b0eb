package pipeline

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
)

// Redactor replaces secret values by a keyed digest: a change stays visible, equal values stay equal, and the
// key is needed to try values out.
type Redactor struct{ key []byte }

// NewRedactor makes a redactor. Digests are comparable between redactors of the same key.
func NewRedactor(key []byte) *Redactor { return &Redactor{key: key} }

// IsSecret reports whether a resource's data is redacted unless a pipeline turns that off.
func IsSecret(gvr schema.GroupVersionResource) bool {
	return gvr.Group == "" && gvr.Resource == "secrets"
}

// Secret returns the Secret with its data, its stringData and the last-applied annotation redacted. What is redacted
// already stays as it is.
func (r *Redactor) Secret(object *delta.Object) (*delta.Object, error) {
	u, err := object.Unstructured()
	if err != nil {
		return nil, fmt.Errorf("redact Secret: %w", err)
	}
	for _, field := range []string{"data", "stringData"} {
		switch values := u.Object[field].(type) {
		case nil:
		case map[string]any:
			for key, value := range values {
				values[key] = r.value(field, value)
			}
		default: // not what a Secret holds
			u.Object[field] = r.value(field, values)
		}
	}
	if annotations := u.GetAnnotations(); annotations[delta.LastApplied] != "" {
		annotations[delta.LastApplied] = r.text(annotations[delta.LastApplied])
		u.SetAnnotations(annotations)
	}
	raw, err := json.Marshal(u.Object)
	if err != nil {
		return nil, err
	}
	return delta.NewObject(raw)
}

// value is the digest of one value of a Secret. That of data is of the decoded bytes, so that data and stringData agree.
func (r *Redactor) value(field string, value any) any {
	text, ok := value.(string)
	if ok && field == "data" {
		if decoded, err := base64.StdEncoding.DecodeString(text); err == nil {
			return r.digest(decoded)
		}
	}
	digest, _ := r.any(value) // of decoded JSON: it cannot fail
	return digest
}

// any is the digest of a decoded value: of a string's text, of anything else's JSON with sorted keys. So equal values
// have equal digests, and a text has the one that it has in a Secret. What is a digest already stays as it is.
func (r *Redactor) any(value any) (any, error) {
	if text, ok := value.(string); ok {
		return r.text(text), nil
	}
	raw, err := delta.EncodeJSON(value)
	if err != nil {
		return nil, errors.New("the value cannot be encoded") // encoding/json may quote it
	}
	return r.digest(raw), nil
}

// DigestPrefix marks a value as a digest. What looks like one stays as it is: a version before was redacted when it was
// kept. No value of a Secret's data does, since a colon is no base64.
const DigestPrefix = "redacted:hmac-sha256:"

const digestBytes = 16

func isDigest(text string) bool {
	digits, ok := strings.CutPrefix(text, DigestPrefix)
	if !ok || len(digits) != 2*digestBytes {
		return false
	}
	_, err := hex.DecodeString(digits)
	return err == nil
}

// text is the digest of a text, or the text itself if it is one.
func (r *Redactor) text(text string) string {
	if isDigest(text) {
		return text
	}
	return r.digest([]byte(text))
}

func (r *Redactor) digest(value []byte) string {
	mac := hmac.New(sha256.New, r.key)
	mac.Write(value)
	return DigestPrefix + hex.EncodeToString(mac.Sum(nil)[:digestBytes])
}
