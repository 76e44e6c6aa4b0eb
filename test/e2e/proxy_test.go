package e2e_test

import (
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/proxy"
)

// proxyOf stands before an API server. The kubeconfig is that of config through the proxy.
func proxyOf(tb testing.TB, config *rest.Config) (p *proxy.TCP, kubeconfig string) {
	tb.Helper()
	p = proxy.NewTCP(tb, strings.TrimPrefix(config.Host, "https://"))
	config = rest.CopyConfig(config)
	config.Host = "https://" + p.Addr()
	return p, writeKubeconfig(tb, config)
}

// gatewayOf stands before an API server and can be at fault with single requests.
func gatewayOf(tb testing.TB, config *rest.Config) (p *proxy.HTTP, kubeconfig string) {
	tb.Helper()
	p = proxy.NewHTTP(tb, config)
	return p, writeKubeconfig(tb, p.Config())
}

func writeKubeconfig(tb testing.TB, config *rest.Config) string {
	tb.Helper()
	file := filepath.Join(tb.TempDir(), "kubeconfig")
	if err := controlplane.WriteKubeconfig(file, config); err != nil {
		tb.Fatal(err)
	}
	return file
}

// isWatch reports whether a request watches a resource.
func isWatch(path string, query url.Values, resource string) bool {
	return strings.HasSuffix(path, "/"+resource) && query.Get("watch") != ""
}

// watches makes a rule of a fault that all watches of a resource have.
func watches(resource string, fault *proxy.Fault) proxy.Rule {
	return func(r *http.Request) *proxy.Fault {
		if isWatch(r.URL.Path, r.URL.Query(), resource) {
			return fault
		}
		return nil
	}
}

// relists returns the requests that read the state of a resource from the API server. The list of one object that
// compares positions is none.
func relists(requests []proxy.Request, resource string) []proxy.Request {
	var found []proxy.Request
	for _, r := range requests {
		if !strings.HasSuffix(r.Path, "/"+resource) || r.Method != http.MethodGet {
			continue
		}
		watch := isWatch(r.Path, r.Query, resource)
		if watch && r.Query.Get("sendInitialEvents") != "" || !watch && r.Query.Get("limit") != "1" {
			found = append(found, r)
		}
	}
	return found
}
