package controlplane_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/assets"
)

func TestMain(m *testing.M) {
	assets.Must(controlplane.Prepare)
	goleak.VerifyTestMain(m,
		// client-go keeps one transport per configuration for ever, and with it idle connections.
		goleak.IgnoreAnyFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"),
		goleak.IgnoreAnyFunction("golang.org/x/net/http2.(*ClientConn).readLoop"),
		goleak.IgnoreAnyFunction("net/http.(*http2ClientConn).readLoop"),
		goleak.IgnoreAnyFunction("k8s.io/client-go/transport.(*dynamicClientCert).run"),
	)
}

func TestLifeOfAControlPlane(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	c := controlplane.ForTest(t, controlplane.Options{})
	client := kubernetes.NewForConfigOrDie(c.Config())

	created, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("one"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}

	t.Run("version", func(t *testing.T) {
		v, err := client.Discovery().ServerVersion()
		if err != nil {
			t.Fatal(err)
		}
		if v.Major != "1" || v.Minor == "" {
			t.Errorf("got version %q.%q, which clients cannot parse", v.Major, v.Minor)
		}
	})

	t.Run("kubeconfig", func(t *testing.T) {
		config, err := clientcmd.BuildConfigFromFlags("", c.KubeconfigFile())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := kubernetes.NewForConfigOrDie(config).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Error(err)
		}
	})

	t.Run("service account", func(t *testing.T) { testServiceAccount(t, c, client) })

	t.Run("restart", func(t *testing.T) {
		if err := c.RestartAPIServer(t.Context()); err != nil {
			t.Fatal(err)
		}
		got, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "one", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got.UID != created.UID || got.ResourceVersion != created.ResourceVersion {
			t.Errorf("got %s at %s after the restart, want %s at %s",
				got.UID, got.ResourceVersion, created.UID, created.ResourceVersion)
		}
	})

	t.Run("killed", func(t *testing.T) {
		c.KillAPIServer()
		if _, err := client.CoreV1().ConfigMaps("default").Get(t.Context(), "one", metav1.GetOptions{}); err == nil {
			t.Error("the killed API server still answers")
		}
	})

	c.Stop()
	entries, err := os.ReadDir(os.Getenv("TMPDIR"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		t.Errorf("%s is left in the temporary directory", e.Name())
	}
}

func testServiceAccount(t *testing.T, c *controlplane.ControlPlane, admin kubernetes.Interface) {
	config, err := c.ServiceAccountConfig(t.Context(), "default", "reader")
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	list := func(ctx context.Context) error {
		_, err := client.CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
		return err
	}
	if err := list(t.Context()); !apierrors.IsForbidden(err) {
		t.Fatalf("got %v without a role, want forbidden", err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "default", Name: "reader"}},
	}
	if _, err := admin.RbacV1().RoleBindings("default").Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The authorizer learns of the binding through a watch of its own. The role "view" is aggregated by a controller
	// that does not run here, so it stays empty.
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "view"}}
	role.Rules = []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: []string{"list"}}}
	if _, err := admin.RbacV1().ClusterRoles().Update(t.Context(), role, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, list)
}

func TestCompactedHistoryIsRefused(t *testing.T) {
	c := controlplane.ForTest(t, controlplane.Options{APIServerFlags: []string{"--watch-cache=false"}})
	client := kubernetes.NewForConfigOrDie(c.Config())
	old, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap("old"), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	// Two, since a watch that begins right before the compacted revision misses nothing and is granted.
	for _, name := range []string{"newer", "newest"} {
		if _, err := client.CoreV1().ConfigMaps("default").Create(t.Context(), configMap(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.CompactEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	err = watchOnce(t.Context(), client, old.ResourceVersion)
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("got %v for a compacted version, want a 410", err)
	}
}

func TestWatchListCanBeSwitchedOff(t *testing.T) {
	c := controlplane.ForTest(t, controlplane.Options{APIServerFlags: []string{"--feature-gates=WatchList=false"}})
	yes := true
	_, err := kubernetes.NewForConfigOrDie(c.Config()).CoreV1().ConfigMaps("").Watch(t.Context(), metav1.ListOptions{
		SendInitialEvents: &yes, AllowWatchBookmarks: true,
		ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan,
	})
	if !apierrors.IsInvalid(err) {
		t.Errorf("got %v for a watch-list, want it refused as invalid", err)
	}
}

func TestAFailedStartLeavesNothing(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	_, err := controlplane.Start(t.Context(), controlplane.Options{
		APIServerFlags: []string{"--no-such-flag"},
	})
	if err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("got %v, want the API server's own message", err)
	}
	left, err := filepath.Glob(filepath.Join(os.Getenv("TMPDIR"), "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// watchOnce opens a watch and returns the error that its first event or the request itself brings.
func watchOnce(ctx context.Context, client kubernetes.Interface, version string) error {
	w, err := client.CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		return err
	}
	defer w.Stop()
	select {
	case e := <-w.ResultChan():
		if e.Type != watch.Error {
			return errors.New("an event of type " + string(e.Type))
		}
		return apierrors.FromObject(e.Object)
	case <-time.After(30 * time.Second):
		return errors.New("no event")
	}
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func eventually(t *testing.T, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		err := condition(ctx)
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal(err)
		}
	}
}
