package shape

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"slices"
	"strconv"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/internal/delta"
	"github.com/kubeferry/kubeferry/internal/fieldpath"
)

// Redactor replaces values by keyed digests. A digest is of a value and its place: cluster, resource, namespace, name and
// path. So it shows that this value changed, and nothing else: who writes objects of his own cannot find out by their
// digests what another one holds.
type Redactor struct {
	key     []byte
	cluster string
	idle    sync.Pool // of hashes
}

// NewRedactor makes a redactor. Digests are comparable between redactors of the same key and cluster.
func NewRedactor(key []byte, cluster string) *Redactor { return &Redactor{key: key, cluster: cluster} }

// IsSecret reports whether a resource's data is redacted unless a pipeline turns that off.
func IsSecret(gvr schema.GroupVersionResource) bool {
	return gvr.Group == "" && gvr.Resource == "secrets"
}

// harmlessAnnotations of a Secret are sent as they are: who writes them puts names and settings into them. A tool may copy a value
// into any other annotation, in any form. docs/transforms.md lists them.
var harmlessAnnotations = []string{
	"kubernetes.io/service-account.name", "kubernetes.io/service-account.uid",
	"meta.helm.sh/release-name", "meta.helm.sh/release-namespace", "helm.sh/resource-policy",
	"argocd.argoproj.io/tracking-id", "argocd.argoproj.io/sync-wave",
	"cert-manager.io/certificate-name", "cert-manager.io/issuer-name", "cert-manager.io/issuer-kind", "cert-manager.io/issuer-group",
	"cert-manager.io/common-name", "cert-manager.io/alt-names",
}

// Secret returns the Secret with its data, its stringData and its annotations redacted, but for the annotations that are known to be
// harmless. What is redacted already stays as it is. Labels stay too: nothing could select the object by them otherwise.
func (r *Redactor) Secret(object *delta.Object) (*delta.Object, error) {
	u, err := object.Unstructured()
	if err != nil {
		return nil, fmt.Errorf("redact Secret: %w", err)
	}
	ref := delta.Ref{Resource: schema.GroupVersionResource{Version: "v1", Resource: "secrets"}, Namespace: object.Namespace(), Name: object.Name()}
	for _, place := range []struct {
		path     fieldpath.Path
		harmless []string
	}{
		{fieldpath.Of("metadata", "annotations"), harmlessAnnotations},
		{fieldpath.Of("data"), nil},
		{fieldpath.Of("stringData"), nil},
	} {
		if err := place.path.Replace(u.Object, func(at fieldpath.Path, values any) (any, error) {
			return r.members(ref, at, values, place.harmless)
		}); err != nil {
			return nil, fmt.Errorf("redact Secret: %w", err)
		}
	}
	raw, err := json.Marshal(u.Object)
	if err != nil {
		return nil, err
	}
	return delta.NewObject(raw)
}

// members redacts the values of a map, but for texts under harmless names, and as a whole what is no map, as no Secret has it.
func (r *Redactor) members(ref delta.Ref, at fieldpath.Path, values any, harmless []string) (any, error) {
	members, ok := values.(map[string]any)
	if !ok && values != nil {
		return r.value(ref, at, values)
	}
	for name, value := range members {
		if _, isText := value.(string); isText && slices.Contains(harmless, name) {
			continue
		}
		var err error
		if members[name], err = r.value(ref, at.Join(fieldpath.Of(name)), value); err != nil {
			return nil, err
		}
	}
	return values, nil
}

// DigestPrefix marks a value as a digest. What looks like one stays as it is: a previous version was redacted when it was
// kept. No value of a Secret's data does, since a colon is no base64.
const DigestPrefix = "redacted:hmac-sha256:"

const digestBytes = 16

func isDigest(value any) bool {
	text, _ := value.(string)
	digits, ok := strings.CutPrefix(text, DigestPrefix)
	if !ok || len(digits) != 2*digestBytes {
		return false
	}
	_, err := hex.DecodeString(digits)
	return err == nil
}

// value is the digest of the value in a place, or the value itself if it is one.
func (r *Redactor) value(ref delta.Ref, at fieldpath.Path, value any) (any, error) {
	if isDigest(value) {
		return value, nil
	}
	raw, err := delta.EncodeJSON(value)
	if err != nil {
		return nil, errors.New("the value cannot be encoded") // encoding/json may quote it
	}
	return DigestPrefix + r.digest(r.cluster, ref.Resource.Group, ref.Resource.Resource, ref.Namespace, ref.Name, at.String(), string(raw)), nil
}

// digest is of all parts, and of where each of them ends.
func (r *Redactor) digest(parts ...string) string {
	mac, ok := r.idle.Get().(hash.Hash) // making one takes as long as a digest, and a Secret may have 150,000 values
	if !ok {
		mac = hmac.New(sha256.New, r.key)
	}
	defer r.idle.Put(mac)
	mac.Reset()
	var text []byte
	for _, part := range parts {
		text = append(append(strconv.AppendInt(text, int64(len(part)), 10), ':'), part...)
	}
	_, _ = mac.Write(text) // a hash takes everything
	return hex.EncodeToString(mac.Sum(nil)[:digestBytes])
}

// version identifies the key and the way in which the data of Secrets is redacted: what was redacted under another one does
// not compare with what is redacted now.
func (r *Redactor) version() string { return r.digest(r.cluster, "3") }
