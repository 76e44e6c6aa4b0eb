package deploy_test

import (
	"archive/tar"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/validate"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/process"
	"github.com/kubeferry/kubeferry/test/internal/release"
	"github.com/kubeferry/kubeferry/test/webhooktest"
)

// TestImageIsTheDockerfiles: what `make image` writes is the image that the Dockerfile describes.
func TestImageIsTheDockerfiles(t *testing.T) {
	index := builtImage(t)
	if err := validate.Index(index, validate.Fast); err != nil { // the program that wrote it has read the layers
		t.Error(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	dockerfile := read(t, filepath.Join("..", "..", "Dockerfile"))
	_, stage, _ := strings.Cut(dockerfile, "FROM scratch\n")
	var platforms []string
	for _, descriptor := range manifest.Manifests {
		platforms = append(platforms, descriptor.Platform.String())
		img, err := index.Image(descriptor.Digest)
		if err != nil {
			t.Fatal(err)
		}
		config, err := img.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		if got := config.OS + "/" + config.Architecture; got != descriptor.Platform.String() {
			t.Errorf("the image for %v says it is for %s", descriptor.Platform, got)
		}
		ports := slices.Sorted(maps.Keys(config.Config.ExposedPorts))
		got := fmt.Sprintf("USER %s\nEXPOSE %s\nENTRYPOINT [%q]\nCMD [%q]\n", config.Config.User,
			strings.ReplaceAll(strings.Join(ports, " "), "/tcp", ""), strings.Join(config.Config.Entrypoint, " "), strings.Join(config.Config.Cmd, " "))
		if !strings.HasSuffix(stage, got) {
			t.Errorf("the image has\n%s\nbut the Dockerfile ends in\n%s", got, stage)
		}
		if version := config.Config.Labels["org.opencontainers.image.version"]; version != release.Built {
			t.Errorf("the label of the version is %q", version)
		}
	}
	if want := []string{"linux/" + runtime.GOARCH}; !slices.Equal(platforms, want) { // what was built for tests
		t.Errorf("the image is for %v, want %v", platforms, want)
	}
}

// TestImageIsPushed: a registry has the image under the same digest.
func TestImageIsPushed(t *testing.T) {
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	address, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	to, err := name.ParseReference(address.Host + "/kubeferry:v1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	index := builtImage(t)
	if err := release.Push(t.Context(), index, to); err != nil {
		t.Fatal(err)
	}
	pushed, err := remote.Index(to, remote.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if want, got := digest(t, index), digest(t, pushed); want != got {
		t.Errorf("the registry has %s, want %s", got, want)
	}
}

// testImage runs the image as a Pod does: its own files and nothing else, its user, on a root that is mounted read-only, but for the
// volume, its entry point without arguments, and the API server's address and the ServiceAccount's token where a Pod has them. It
// refuses a receiver that no authority of the image vouches for, and trusts one that an authority in the same file does.
func testImage(t *testing.T, plane *controlplane.ControlPlane, m *manifests) {
	if err := exec.CommandContext(t.Context(), "unshare", "--mount", "true").Run(); err != nil {
		const why = "only root on Linux, with the right to mount, can run a program with another root directory that is read-only: "
		if os.Getenv("CI") == "true" {
			t.Fatal(why, err)
		}
		t.Skip(why, err)
	}
	img, config := imageFor(t, builtImage(t), runtime.GOARCH)
	root := t.TempDir()
	unpack(t, mutate.Extract(img), root)

	account := m.account(t, plane)
	server, err := url.Parse(account.Host)
	if err != nil {
		t.Fatal(err)
	}
	receiver, secured := webhooktest.Start(t), webhooktest.StartTLS(t)
	const serviceAccount = "var/run/secrets/kubernetes.io/serviceaccount/"
	write(t, filepath.Join(root, serviceAccount+"token"), account.BearerToken)
	write(t, filepath.Join(root, serviceAccount+"ca.crt"), string(account.CAData))
	write(t, filepath.Join(root, serviceAccount+"namespace"), m.workload.Namespace)
	write(t, filepath.Join(root, "etc/kubeferry/kubeferry.yaml"), fmt.Sprintf(`cluster: test
stateDir: /var/lib/kubeferry
shutdown: {grace: 1s}
sources:
  - {name: all, resources: [v1/configmaps], namespaces: {exclude: [kube-system]}}
pipelines:
  - {name: hook, sink: hook}
  - {name: secured, sink: secured}
sinks:
  - {name: hook, webhook: {url: %q}}
  - {name: secured, webhook: {url: %q}}
server: {listen: "127.0.0.1:0"}
`, receiver.URL(), secured.URL()))
	volume := filepath.Join(root, "var/lib/kubeferry")
	if err := os.MkdirAll(volume, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(volume, 65532, 65532); err != nil {
		t.Fatal(err)
	}
	before := listFiles(t, root, volume)

	const mount = `mount --bind "$0" "$0" && mount --bind "$1" "$1" && mount -o remount,bind,ro "$0" && shift && exec chroot "$@"`
	args := slices.Concat([]string{"--mount", "--propagation", "private", "sh", "-c", mount, root, volume}, // each replaces itself by the next
		[]string{"--userspec=" + config.Config.User, root}, config.Config.Entrypoint, config.Config.Cmd)
	start := func() *exporter {
		e := run(t, process.Options{
			Path: "unshare", Args: args, Log: filepath.Join(t.TempDir(), "log"),
			Env: []string{"KUBERNETES_SERVICE_HOST=" + server.Hostname(), "KUBERNETES_SERVICE_PORT=" + server.Port()},
		})
		e.await(t, "/readyz", "the image is ready", isReady)
		return e
	}
	stop := func(e *exporter) {
		e.process.Stop(30 * time.Second)
		if err := e.process.Wait(); err != nil {
			t.Errorf("after SIGTERM: %v", err)
		}
	}
	e := start()
	changes := live(t.Context(), t, plane.Config(), schema.GroupVersionResource{Version: "v1", Resource: "configmaps"})
	awaitAll(t, accepted(receiver), changes)
	e.await(t, "/status", "the receiver's authority is unknown", func(_ int, body string) bool {
		return strings.Contains(body, "x509: certificate signed by unknown authority")
	})
	mounts := read(t, fmt.Sprintf("/proc/%d/mounts", e.process.Pid()))
	if !regexp.MustCompile(`(?m)^\S+ / \S+ ro[, ]`).MatchString(mounts) {
		t.Errorf("its root is not read-only:\n%s", mounts)
	}
	stop(e)
	if after := listFiles(t, root, volume); !slices.Equal(before, after) {
		t.Errorf("files of the image before: %v, after: %v", before, after)
	}
	if len(listFiles(t, volume, "")) < 2 {
		t.Error("nothing is in the state directory")
	}
	if len(secured.Accepted()) > 0 {
		t.Error("a receiver that no authority vouches for has got records")
	}
	const bundle = "etc/ssl/certs/ca-certificates.crt"
	trusted := read(t, filepath.Join(root, bundle))
	if n := strings.Count(trusted, "-----BEGIN CERTIFICATE-----\n"); n < 100 {
		t.Errorf("the image trusts %d authorities", n)
	}
	write(t, filepath.Join(root, bundle), trusted+authority(secured))
	e = start()
	awaitAll(t, accepted(secured), changes)
	stop(e)
}

// authority is the certificate of the authority of a receiver with HTTPS.
func authority(receiver *webhooktest.Receiver) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: receiver.Server().Certificate().Raw}))
}

// imageFor returns the image for an architecture, with its configuration.
func imageFor(t *testing.T, index v1.ImageIndex, arch string) (v1.Image, *v1.ConfigFile) {
	t.Helper()
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(manifest.Manifests, func(d v1.Descriptor) bool { return d.Platform.Architecture == arch })
	if at < 0 {
		t.Fatalf("the image is not for %s", arch)
	}
	img, err := index.Image(manifest.Manifests[at].Digest)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	return img, config
}

// builtImage reads the archive that release.Prepare wrote.
func builtImage(t *testing.T) v1.ImageIndex {
	t.Helper()
	written, err := release.Dir()
	if err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(filepath.Join(written, "kubeferry-"+release.Built+"-image.tar"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	dir := t.TempDir()
	unpack(t, file, dir)
	outer, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := outer.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	if len(manifest.Manifests) != 1 {
		t.Fatalf("the archive has %d images, want 1", len(manifest.Manifests))
	}
	index, err := outer.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	return index
}

// unpack writes the files of an archive, with their modes.
func unpack(t *testing.T, archive io.Reader, dir string) {
	t.Helper()
	for r := tar.NewReader(archive); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.FromSlash(header.Name))
		if header.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, fs.FileMode(header.Mode))
		} else {
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				if err = os.MkdirAll(filepath.Dir(path), 0o755); err == nil {
					err = os.WriteFile(path, content, fs.FileMode(header.Mode))
				}
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// listFiles lists what lies under root but under except, each with its size and time.
func listFiles(t *testing.T, root, except string) []string {
	t.Helper()
	var files []string
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if path == except {
			return fs.SkipDir
		}
		info, err := entry.Info()
		files = append(files, fmt.Sprint(path, info.Mode(), info.Size(), info.ModTime()))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func digest(t *testing.T, index v1.ImageIndex) string {
	t.Helper()
	hash, err := index.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return hash.String()
}
