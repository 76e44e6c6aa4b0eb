package controlplane

import (
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

// binaries are the programs that a control plane consists of.
func binaries() []string { return []string{"kube-apiserver", "etcd"} }

// Assets returns a directory with the binaries kube-apiserver and etcd: the one that KUBEBUILDER_ASSETS names, or the
// one in the user's cache, which [Prepare] fills.
func Assets() (dir string, err error) {
	if dir := os.Getenv("KUBEBUILDER_ASSETS"); dir != "" && complete(dir) {
		return dir, nil
	}
	r, err := loadRecipes()
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
	r, err := loadRecipes()
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

func complete(dir string) bool {
	for _, name := range binaries() {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || info.IsDir() {
			return false
		}
	}
	return true
}

// recipes are the modules under assets/, one per binary, whose go.mod and go.sum pin what is built.
type recipes struct {
	dir     string
	version string // of Kubernetes, such as v1.36.3
	digest  string // of everything that decides what is built
}

// loadRecipes finds assets/ in the checkout, because modules cannot embed files of nested modules.
func loadRecipes() (*recipes, error) {
	root, err := programs.Root()
	if err != nil {
		return nil, err
	}
	r := &recipes{dir: filepath.Join(root, "test", "controlplane", "assets")}

	digest := sha256.New()
	fmt.Fprintln(digest, buildFlags("VERSION"))
	for _, name := range binaries() {
		for _, file := range []string{"go.mod", "go.sum"} {
			b, err := os.ReadFile(filepath.Join(r.dir, name, file))
			if err != nil {
				return nil, err
			}
			fmt.Fprintf(digest, "%s/%s %d\n%s", name, file, len(b), b)
			if name == "kube-apiserver" && file == "go.mod" {
				r.version = kubernetesVersion(b)
			}
		}
	}
	if r.version == "" {
		return nil, errors.New("kube-apiserver/go.mod does not require k8s.io/kubernetes")
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
