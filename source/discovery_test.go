package source

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// TestMissingCRD: a custom resource that discovery does not list is gone only if it certainly has no CustomResourceDefinition.
func TestMissingCRD(t *testing.T) {
	gadgets := schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "gadgets"}
	failure := func(code int, reason string) string {
		return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":%q,"code":%d}`, reason, code)
	}
	for name, test := range map[string]struct {
		code                  int
		answer                string
		missing, absent, gone bool
		says                  string
	}{
		"not served":     {200, `{"kind":"PartialObjectMetadataList","items":[{"metadata":{"name":"gadgets.example.com"}}]}`, true, false, false, "does not serve it"},
		"no CRD":         {200, `{"kind":"PartialObjectMetadataList","items":[]}`, true, true, true, "no such resource"},
		"forbidden":      {403, failure(403, "Forbidden"), true, true, false, "is not known"},
		"no CRDs at all": {404, failure(404, "NotFound"), true, true, false, "is not known"},
		"away":           {503, failure(503, "ServiceUnavailable"), false, false, false, "look for the CustomResourceDefinition"},
		"not Kubernetes": {200, `{"kind":"Greeting"}`, false, false, false, "unexpected kind"},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", "application/json")
				switch {
				case r.URL.Path == "/apis":
					fmt.Fprint(w, `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`)
				case r.URL.Query().Get("fieldSelector") == "metadata.name=gadgets.example.com":
					w.WriteHeader(test.code)
					fmt.Fprint(w, test.answer)
				default:
					w.WriteHeader(http.StatusNotFound)
					fmt.Fprint(w, failure(404, "NotFound"))
				}
			}))
			defer server.Close()
			client, err := NewClient(&rest.Config{Host: server.URL}, false)
			if err != nil {
				t.Fatal(err)
			}
			_, err = client.resolve(t.Context(), gadgets)
			if err == nil || errors.Is(err, ErrMissing) != test.missing || isAbsent(err) != test.absent || isGone(err) != test.gone || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v (missing %v, absent %v, gone %v), want %+v", err, errors.Is(err, ErrMissing), isAbsent(err), isGone(err), test)
			}
		})
	}
}
