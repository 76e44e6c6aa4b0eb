package release

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/pem"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"

	"github.com/kubeferry/kubeferry/test/internal/programs"
)

// Architectures are those that the image of a release is for. All of them are linux.
var Architectures = []string{"amd64", "arm64"}

const source = "https://github.com/kubeferry/kubeferry"

// Image builds the container image of this checkout without a container engine: the one that the Dockerfile describes, for several
// architectures at once. version is what `kubeferry version` prints.
func Image(ctx context.Context, version string, architectures []string, log io.Writer) (v1.ImageIndex, error) {
	root, err := programs.Root()
	if err != nil {
		return nil, err
	}
	created, revision := commit(ctx, root)

	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, arch := range architectures {
		fmt.Fprintf(log, "building the image for linux/%s\n", arch)
		binary, err := program(ctx, root, "linux", arch, version)
		if err != nil {
			return nil, err
		}
		files, err := layer(binary, created)
		if err != nil {
			return nil, err
		}
		img, err := mutate.AppendLayers(mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1), files)
		if err != nil {
			return nil, err
		}
		config := &v1.ConfigFile{
			OS: "linux", Architecture: arch, Created: v1.Time{Time: created},
			// The same as in the Dockerfile, which a test compares.
			Config: v1.Config{
				User:         "65532:65532",
				ExposedPorts: map[string]struct{}{"8080/tcp": {}, "8443/tcp": {}},
				Entrypoint:   []string{"/kubeferry"},
				Cmd:          []string{"run"},
				Labels: map[string]string{
					"org.opencontainers.image.title":       "kubeferry",
					"org.opencontainers.image.description": "Sends every change of Kubernetes objects to Kafka, NATS and webhooks",
					"org.opencontainers.image.source":      source,
					"org.opencontainers.image.version":     version,
					"org.opencontainers.image.revision":    revision,
					"org.opencontainers.image.created":     created.Format(time.RFC3339),
				},
			},
		}
		layers, err := img.ConfigFile()
		if err != nil {
			return nil, err
		}
		config.RootFS, config.History = layers.RootFS, []v1.History{{Created: config.Created, CreatedBy: "make image"}}
		if img, err = mutate.ConfigFile(img, config); err != nil {
			return nil, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{
			Add:        img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}},
		})
	}
	return index, nil
}

// WriteImage writes the image as a tar archive in the layout of the OCI image specification, under the name kubeferry:<version>.
func WriteImage(index v1.ImageIndex, version, path string) error {
	dir, err := os.MkdirTemp("", "kubeferry-image-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	image, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	// The first name is that of the specification, the second the one that containerd and Docker read.
	names := layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": version,
		"io.containerd.image.name":          "docker.io/library/kubeferry:" + version,
	})
	if err := image.AppendIndex(index, names); err != nil {
		return err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	if err := addDirectory(w, dir); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, archive.Bytes(), 0o644)
}

// Push pushes the image to a registry, with the credentials that `docker login` and the like keep.
func Push(ctx context.Context, index v1.ImageIndex, to name.Reference) error {
	if err := remote.WriteIndex(to, index, remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithContext(ctx)); err != nil {
		return fmt.Errorf("push %s: %w", to, err)
	}
	return nil
}

// addDirectory adds the files of a directory in their order by name, without times and owners, so that the same image
// makes the same archive. tar.Writer.AddFS would add both.
func addDirectory(w *tar.Writer, dir string) error {
	files := os.DirFS(dir)
	return fs.WalkDir(files, ".", func(name string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := fs.ReadFile(files, name)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	})
}

// program builds kubeferry of a checkout as the Dockerfile does, unless what was built before is up to date, and returns its bytes.
func program(ctx context.Context, root, goos, arch, version string) ([]byte, error) {
	out := filepath.Join(root, "bin", "image", goos+"-"+arch)
	args := append([]string{"build", "-ldflags", "-s -w -X main.version=" + version, "-o", out}, programs.Flags...)
	build := exec.CommandContext(ctx, "go", append(args, "./cmd/exporter")...)
	build.Dir = root
	build.Env = append(append(os.Environ(), programs.Env...), "GOOS="+goos, "GOARCH="+arch)
	if text, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build kubeferry for %s/%s: %w: %s", goos, arch, err, bytes.TrimSpace(text))
	}
	return os.ReadFile(out)
}

// layer returns the files of the image: the program, and the certificate authorities that it trusts.
func layer(binary []byte, modified time.Time) (v1.Layer, error) {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	add := func(name string, mode int64, content []byte) error {
		header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(content)), ModTime: modified}
		if content == nil {
			header.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(header); err != nil {
			return err
		}
		_, err := w.Write(content)
		return err
	}
	for _, dir := range []string{"etc/", "etc/ssl/", "etc/ssl/certs/"} {
		if err := add(dir, 0o755, nil); err != nil {
			return nil, err
		}
	}
	if err := add("etc/ssl/certs/ca-certificates.crt", 0o444, authorities()); err != nil {
		return nil, err
	}
	if err := add("kubeferry", 0o555, binary); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	content := archive.Bytes()
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content)), nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching) // or each digest compresses anew
}

// authorities returns Mozilla's certificate authorities as PEM. Those with a constraint that PEM cannot express, such as
// a date after which they are distrusted, are left out.
func authorities() []byte {
	var out bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}) // a buffer returns no error
		}
	}
	return out.Bytes()
}

// commit returns the time and the hash of the commit. Times in what is released are the commit's, so that building it again gives the
// same bytes. Without git there is neither.
func commit(ctx context.Context, root string) (created time.Time, revision string) {
	out, _ := exec.CommandContext(ctx, "git", "-C", root, "log", "-1", "--format=%ct %H").Output()
	seconds, revision, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	unix, _ := strconv.ParseInt(seconds, 10, 64)
	return time.Unix(unix, 0).UTC(), revision
}
