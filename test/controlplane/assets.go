package controlplane

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	"github.com/kubeferry/kubeferry/test/internal/cache"
	"github.com/kubeferry/kubeferry/test/internal/programs"
)

// binary is a program that is built from a Go module in assets/.
type binary struct{ name, module, pkg, takes string }

// server are the programs that every test needs, and controllers those that few do.
var (
	server = []binary{
		{"kube-apiserver", "kube-apiserver", "k8s.io/kubernetes/cmd/kube-apiserver", "4 minutes on 2 cores"},
		{"etcd", "etcd", "go.etcd.io/etcd/server/v3", "half a minute"},
	}
	controllers = []binary{
		{"kube-controller-manager", "controllers", "k8s.io/kubernetes/cmd/kube-controller-manager", "3 minutes on 2 cores"},
		{"kube-scheduler", "controllers", "k8s.io/kubernetes/cmd/kube-scheduler", "half a minute"},
	}
)

// Assets returns a directory with the binaries kube-apiserver and etcd: the one that KUBEBUILDER_ASSETS names, or the
// one in the user's cache, which [Prepare] fills.
func Assets() (dir string, err error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" && complete(dir) {
		return dir, nil
	}
	r, err := loadRecipes(server)
	if err != nil {
		return "", fmt.Errorf("control plane assets: %w", err)
	}
	if dir, err = cache.Find(r.cacheName()); err != nil {
		return "", fmt.Errorf("kube-apiserver and etcd are missing, run `make assets`: %w", err)
	}
	return dir, nil
}

// Prepare makes sure that there are Assets. It fills the user's cache the first time by a download with setup-envtest,
// or, where that cannot reach its host, by building both programs from the Go modules in assets/. The build takes
// minutes; log gets its progress. Prepare belongs before the tests, in TestMain.
//
// Processes that call it at the same time wait for the one that builds.
func Prepare(ctx context.Context, log io.Writer) error {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" && complete(dir) {
		return nil
	}
	r, err := loadRecipes(server)
	if err != nil {
		return fmt.Errorf("control plane assets: %w", err)
	}
	_, err = cache.Dir(ctx, log, r.cacheName(), func(ctx context.Context, dir string) error {
		fmt.Fprintf(log, "looking for Kubernetes %s test binaries to download\n", r.version)
		downloadErr := download(ctx, r.version, dir)
		if downloadErr == nil {
			return nil
		}
		fmt.Fprintf(log, "no download (%s)\n", firstLine(downloadErr))
		return r.build(ctx, log, dir)
	})
	if err != nil {
		return fmt.Errorf("control plane assets: %w", err)
	}
	return nil
}

// PrepareControllers does that for what [ControlPlane.StartControllers] starts.
func PrepareControllers(ctx context.Context, log io.Writer) error {
	r, err := loadRecipes(controllers)
	if err == nil {
		_, err = cache.Dir(ctx, log, r.cacheName(), func(ctx context.Context, dir string) error { return r.build(ctx, log, dir) })
	}
	if err != nil {
		return fmt.Errorf("controllers: %w", err)
	}
	return nil
}

func complete(dir string) bool {
	for _, b := range server {
		info, err := os.Stat(filepath.Join(dir, b.name))
		if err != nil || info.IsDir() {
			return false
		}
	}
	return true
}

// recipes are modules under assets/ whose go.mod and go.sum pin what is built.
type recipes struct {
	dir      string
	binaries []binary
	version  string // of Kubernetes, such as v1.36.3
	digest   string // of everything that decides what is built
}

// loadRecipes finds assets/ in the checkout, because modules cannot embed files of nested modules.
func loadRecipes(binaries []binary) (*recipes, error) {
	root, err := programs.Root()
	if err != nil {
		return nil, err
	}
	r := &recipes{dir: filepath.Join(root, "test", "controlplane", "assets"), binaries: binaries}

	digest := sha256.New()
	fmt.Fprintln(digest, buildFlags("VERSION"))
	for _, from := range binaries {
		for _, file := range []string{"go.mod", "go.sum"} {
			b, err := os.ReadFile(filepath.Join(r.dir, from.module, file))
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(digest, "%s/%s %d\n%s", from.module, file, len(b), b)
			if file == "go.mod" {
				r.version = cmp.Or(r.version, kubernetesVersion(b))
			}
		}
	}
	if r.version == "" {
		return nil, errors.New("no go.mod requires k8s.io/kubernetes")
	}
	r.digest = hex.EncodeToString(digest.Sum(nil))[:12]
	return r, nil
}

func (r *recipes) cacheName() string {
	return fmt.Sprintf("controlplane/%s-%s-%s-%s", r.version, runtime.GOOS, runtime.GOARCH, r.digest)
}

func kubernetesVersion(gomod []byte) string {
	m := regexp.MustCompile(`(?m)^\s*(?:require\s+)?k8s\.io/kubernetes\s+(v\S+)`).FindSubmatch(gomod)
	if m == nil {
		return ""
	}
	return string(m[1])
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
