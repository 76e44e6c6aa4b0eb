package pipeline

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/delta"
)

// lastApplied is where kubectl keeps a copy of the whole object, Secrets' data too.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Redactor replaces secret values by a keyed digest: a change stays visible, equal values stay equal, and nobody
// without the key can try values out.
type Redactor struct{ key []byte }

// NewRedactor makes a redactor. Digests are comparable between redactors of the same key.
func NewRedactor(key []byte) *Redactor { return &Redactor{key: key} }

func isSecret(gvr schema.GroupVersionResource) bool {
	return gvr.Group == "" && gvr.Resource == "secrets"
}

// Secret returns the Secret with its data, its stringData and the last-applied annotation redacted. If it cannot, the
// object it returns beside the error is the identity alone.
func (r *Redactor) Secret(object *delta.Object) (*delta.Object, error) {
	redacted, err := r.secret(object)
	if err != nil {
		kind := schema.FromAPIVersionAndKind(object.APIVersion(), object.Kind())
		return delta.NewIdentity(kind, object.Namespace(), object.Name(), object.UID(), object.ResourceVersion()),
			fmt.Errorf("redact Secret: %w", err)
	}
	return redacted, nil
}

func (r *Redactor) secret(object *delta.Object) (*delta.Object, error) {
	u, err := object.Unstructured()
	if err != nil {
		return nil, err
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
	if annotations := u.GetAnnotations(); annotations[lastApplied] != "" {
		annotations[lastApplied] = r.digest([]byte(annotations[lastApplied]))
		u.SetAnnotations(annotations)
	}
	raw, err := json.Marshal(u.Object)
	if err != nil {
		return nil, err
	}
	return delta.NewObject(raw)
}

// value is the digest of one value. That of data is of the decoded bytes, so that data and stringData agree.
func (r *Redactor) value(field string, value any) string {
	text, ok := value.(string)
	if !ok {
		raw, err := json.Marshal(value)
		if err != nil {
			return r.digest(nil)
		}
		return r.digest(raw)
	}
	if field == "data" {
		if decoded, err := base64.StdEncoding.DecodeString(text); err == nil {
			return r.digest(decoded)
		}
	}
	return r.digest([]byte(text))
}

func (r *Redactor) digest(value []byte) string {
	mac := hmac.New(sha256.New, r.key)
	mac.Write(value)
	return "redacted:hmac-sha256:" + hex.EncodeToString(mac.Sum(nil)[:16])
}
