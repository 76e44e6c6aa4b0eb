package replication

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// TestAPI: requests have the paths and the kinds of the API, and an error is the one that the API server sent. test/e2e sends them to a real one.
func TestAPI(t *testing.T) {
	var got []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		var sent metav1.TypeMeta
		if len(body) > 0 {
			if err := json.Unmarshal(body, &sent); err != nil {
				t.Errorf("%s: %v", body, err)
			}
		}
		got = append(got, fmt.Sprintf("%s %s %s %s", r.Method, r.URL.Path, sent.APIVersion, sent.Kind))
		w.Header().Set("Content-Type", "application/json")
		switch r.Method {
		case http.MethodGet:
			_, _ = io.WriteString(w, `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"l","resourceVersion":"7"}}`)
		case http.MethodPut:
			w.WriteHeader(http.StatusConflict)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"it has changed","reason":"Conflict","code":409}`)
		default:
			if sent.Kind == "TokenRequest" {
				body = []byte(`{"kind":"TokenRequest","apiVersion":"authentication.k8s.io/v1","status":{"token":"t"}}`)
			}
			_, _ = w.Write(body)
		}
	}))
	t.Cleanup(server.Close)
	api, err := NewAPI(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	ctx, leases := t.Context(), api.Leases("n")
	lease, err := leases.Get(ctx, "l")
	if err != nil || lease.ResourceVersion != "7" {
		t.Errorf("got %v, %v", lease, err)
	}
	if lease, err = leases.Create(ctx, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l"}}); err != nil || lease.Name != "l" {
		t.Errorf("got %v, %v", lease, err)
	}
	if _, err := leases.Update(ctx, lease); !apierrors.IsConflict(err) {
		t.Errorf("got %v", err)
	}
	account := &serviceAccount{api, "n", "a"}
	if token, err := account.Token(ctx, "somebody"); err != nil || token != "t" {
		t.Errorf("got the token %q, %v", token, err)
	}
	if err := account.Check(ctx, "somebody", "t"); err == nil {
		t.Error("a token is valid that nobody authenticated")
	}
	if _, err := NewAuthenticator(ctx, api); err == nil {
		t.Error("nobody is a ServiceAccount")
	}
	want := []string{
		"GET /apis/coordination.k8s.io/v1/namespaces/n/leases/l  ",
		"POST /apis/coordination.k8s.io/v1/namespaces/n/leases coordination.k8s.io/v1 Lease",
		"PUT /apis/coordination.k8s.io/v1/namespaces/n/leases/l coordination.k8s.io/v1 Lease",
		"POST /api/v1/namespaces/n/serviceaccounts/a/token authentication.k8s.io/v1 TokenRequest",
		"POST /apis/authentication.k8s.io/v1/tokenreviews authentication.k8s.io/v1 TokenReview",
		"POST /apis/authentication.k8s.io/v1/selfsubjectreviews authentication.k8s.io/v1 SelfSubjectReview",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%q\nwant\n%q", got, want)
	}
}
