package controlplane

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/test/internal/freeport"
	"github.com/kubeferry/kubeferry/test/internal/process"
)

// prepareAPIServer decides what stays the same across restarts: the port and the administrator's credentials.
func (c *ControlPlane) prepareAPIServer() (err error) {
	if c.port, err = freeport.Pick(); err != nil {
		return err
	}
	cert, key, err := c.pki.client("kubeferry-test-admin", "system:masters")
	if err != nil {
		return err
	}
	c.config = c.configFor(rest.Config{TLSClientConfig: rest.TLSClientConfig{CertData: cert, KeyData: key}})
	return WriteKubeconfig(c.KubeconfigFile(), c.config)
}

// configFor completes credentials with the address of the API server.
func (c *ControlPlane) configFor(credentials rest.Config) *rest.Config {
	credentials.Host = "https://" + freeport.Addr(c.port)
	credentials.CAData = c.pki.caPEM
	credentials.QPS = -1 // tests want the server's limits, not the client's
	return &credentials
}

// collectLess has a server collect garbage half as often as it would: a quarter less CPU time for twice the memory.
const collectLess = "GOGC=200"

// startAPIServer is called with c.mu held.
func (c *ControlPlane) startAPIServer(ctx context.Context, flags ...string) error {
	if c.stopped {
		return errors.New("control plane is stopped")
	}
	if c.apiServer != nil {
		return nil
	}
	p, err := process.Start(process.Options{
		Path: filepath.Join(c.assets, "kube-apiserver"),
		Args: slices.Concat(c.apiServerFlags(), c.opts.APIServerFlags, flags),
		Env:  []string{collectLess},
		Log:  filepath.Join(c.logDir, "kube-apiserver.log"),
	})
	if err != nil {
		return err
	}
	if err := c.waitReady(ctx, p, c.probeAPIServer); err != nil {
		p.Kill()
		return err
	}
	c.apiServer = p
	return nil
}

func (c *ControlPlane) apiServerFlags() []string {
	issuer := "https://" + freeport.Addr(c.port)
	var overrides []string
	if c.opts.EventsEtcd {
		overrides = []string{"--etcd-servers-overrides=/events#" + c.eventsEtcdURL}
	}
	return append(overrides,
		"--etcd-servers="+c.etcdURL,
		"--bind-address=127.0.0.1",
		"--secure-port="+strconv.Itoa(c.port),
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none", // a loopback address is not a valid endpoint
		"--cert-dir="+c.dir,
		"--tls-cert-file="+c.pki.path("apiserver.crt"),
		"--tls-private-key-file="+c.pki.path("apiserver.key"),
		"--client-ca-file="+c.pki.path("ca.crt"),
		"--authorization-mode=RBAC",
		"--allow-privileged=true",
		"--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer="+issuer,
		"--api-audiences="+issuer,
		"--service-account-key-file="+c.pki.path("sa.key"),
		"--service-account-signing-key-file="+c.pki.path("sa.key"),
		// It refuses Pods in namespaces without a default ServiceAccount, which a controller would create.
		"--disable-admission-plugins=ServiceAccount",
	)
}

// probeAPIServer succeeds when the server is ready and, which it does not wait for, has made the default namespace.
func (c *ControlPlane) probeAPIServer(ctx context.Context) error {
	httpClient, err := rest.HTTPClientFor(c.config)
	if err != nil {
		return err
	}
	// client-go keeps transports for ever; their idle connections would look like leaks to a test.
	defer httpClient.CloseIdleConnections()
	client, err := kubernetes.NewForConfigAndClient(c.config, httpClient)
	if err != nil {
		return err
	}
	if _, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx); err != nil {
		return fmt.Errorf("readyz: %w", err)
	}
	_, err = client.CoreV1().Namespaces().Get(ctx, metav1.NamespaceDefault, metav1.GetOptions{})
	return err
}
