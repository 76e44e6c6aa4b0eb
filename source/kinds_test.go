package source

import (
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/source/sourcetest"
)

func TestResourceOf(t *testing.T) {
	server := sourcetest.New(t)
	client, err := NewClient(&rest.Config{Host: server.URL, QPS: -1}, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind    schema.GroupKind
		missing bool
	}{
		{schema.GroupKind{Kind: "Gadget"}, false},
		{schema.GroupKind{Kind: "gadget"}, true},
		{schema.GroupKind{Group: "example.com", Kind: "Gadget"}, true},
	} {
		gvr, namespaced, err := client.ResourceOf(t.Context(), c.kind)
		if c.missing {
			if !errors.Is(err, ErrMissing) {
				t.Errorf("%v: got %v, %v, want ErrMissing", c.kind, gvr, err)
			}
			continue
		}
		if gvr != sourcetest.Gadgets || !namespaced || err != nil {
			t.Errorf("%v: got %v, %v, %v", c.kind, gvr, namespaced, err)
		}
	}
}
