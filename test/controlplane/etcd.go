package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/kubeferry/kubeferry/test/internal/freeport"
	"github.com/kubeferry/kubeferry/test/internal/process"
)

// errPortTaken means that a port which was free a moment ago is not any more.
var errPortTaken = errors.New("port taken by another process")

func (c *ControlPlane) startEtcd(ctx context.Context) (err error) {
	c.etcd, c.etcdURL, err = c.startEtcdIn(ctx, "etcd")
	if err == nil && c.opts.EventsEtcd {
		c.eventsEtcd, c.eventsEtcdURL, err = c.startEtcdIn(ctx, "events-etcd")
	}
	return err
}

// EmptyEventsEtcd kills the API server and the etcd of Events, and starts both again, that one without data.
func (c *ControlPlane) EmptyEventsEtcd(ctx context.Context) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apiServer.Kill()
	c.eventsEtcd.Kill()
	c.apiServer = nil
	if err := os.RemoveAll(filepath.Join(c.dir, "events-etcd")); err != nil {
		return err
	}
	if c.eventsEtcd, c.eventsEtcdURL, err = c.startEtcdIn(ctx, "events-etcd"); err != nil {
		return err
	}
	return c.startAPIServer(ctx)
}

// startEtcdIn starts an etcd with its data in a directory.
func (c *ControlPlane) startEtcdIn(ctx context.Context, dir string) (*process.Process, string, error) {
	clientPort, err := freeport.Pick()
	if err != nil {
		return nil, "", err
	}
	peerPort, err := freeport.Pick()
	if err != nil {
		return nil, "", err
	}
	clientURL := "http://" + freeport.Addr(clientPort)
	peerURL := "http://" + freeport.Addr(peerPort)

	p, err := process.Start(process.Options{
		Path: filepath.Join(c.assets, "etcd"),
		Args: append([]string{
			"--name=test",
			"--data-dir=" + filepath.Join(c.dir, dir),
			"--listen-client-urls=" + clientURL, "--advertise-client-urls=" + clientURL,
			"--listen-peer-urls=" + peerURL, "--initial-advertise-peer-urls=" + peerURL,
			"--initial-cluster=test=" + peerURL,
			"--unsafe-no-fsync",
			"--log-level=warn",
		}, c.opts.EtcdFlags...),
		Env: []string{collectLess},
		Log: filepath.Join(c.logDir, dir+".log"),
	})
	if err != nil {
		return nil, "", err
	}
	return p, clientURL, c.waitReady(ctx, p, func(ctx context.Context) error {
		_, err := callEtcd(ctx, http.MethodGet, clientURL+"/health", nil)
		return err
	})
}

// BackUpEtcd keeps a copy of all data for [ControlPlane.RestoreEtcd], in place of an earlier one.
func (c *ControlPlane) BackUpEtcd() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	backup := filepath.Join(c.dir, "backup")
	if err := os.RemoveAll(backup); err != nil {
		return err
	}
	// What is on disk at one moment is what a crash would leave.
	c.etcd.Signal(syscall.SIGSTOP)
	defer c.etcd.Signal(syscall.SIGCONT)
	return os.CopyFS(backup, os.DirFS(filepath.Join(c.dir, "etcd")))
}

// RestoreEtcd puts the data of the last [ControlPlane.BackUpEtcd] in place of the present ones: the history goes back, and
// resource versions are given again. With raised, the revision is raised to that, and what is older is forgotten, as etcdutl does with
// --bump-revision and --mark-compacted; objects keep their resource versions. The API server is killed, and started afterwards.
func (c *ControlPlane) RestoreEtcd(ctx context.Context, raised int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.apiServer.Kill()
	c.etcd.Kill()
	c.apiServer = nil
	data := filepath.Join(c.dir, "etcd")
	if err := os.RemoveAll(data); err != nil {
		return err
	}
	if err := os.CopyFS(data, os.DirFS(filepath.Join(c.dir, "backup"))); err != nil {
		return err
	}
	if err := c.startEtcd(ctx); err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	if raised > 0 {
		if err := c.raiseEtcd(ctx, raised); err != nil {
			return fmt.Errorf("raise the revision of etcd: %w", err)
		}
	}
	return c.startAPIServer(ctx)
}

func (c *ControlPlane) raiseEtcd(ctx context.Context, revision int) error {
	for {
		var put struct {
			Header struct {
				Revision int `json:"revision,string"`
			}
		}
		body, err := c.callEtcd(ctx, http.MethodPost, "/v3/kv/put", map[string]any{"key": []byte("raised"), "value": []byte("1")})
		if err == nil {
			err = json.Unmarshal(body, &put)
		}
		if err != nil {
			return err
		}
		if put.Header.Revision >= revision {
			return c.CompactEtcdTo(ctx, strconv.Itoa(put.Header.Revision))
		}
	}
}

// waitReady is [process.Process.WaitReady] with a time limit, and distinguishes a lost race for a port from other failures.
func (c *ControlPlane) waitReady(ctx context.Context, p *process.Process, probe func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := p.WaitReady(ctx, probe)
	if err != nil && strings.Contains(err.Error(), "address already in use") {
		return fmt.Errorf("%w: %w", errPortTaken, err)
	}
	return err
}

// CompactEtcd makes etcd forget all revisions before the current one, which it returns. A watch or a continued list
// that is served from etcd and has missed any of them gets a 410; see the package comment for which ones are.
func (c *ControlPlane) CompactEtcd(ctx context.Context) (revision string, err error) {
	revision, err = c.EtcdRevision(ctx)
	if err != nil {
		return "", fmt.Errorf("compact etcd: %w", err)
	}
	return revision, c.CompactEtcdTo(ctx, revision)
}

// EtcdRevision returns the revision that etcd is at.
func (c *ControlPlane) EtcdRevision(ctx context.Context) (string, error) {
	// etcd's JSON gateway spares the tests a dependency on its client.
	var status struct {
		Header struct{ Revision string } // int64 as a string, as protobuf's JSON has it
	}
	body, err := c.callEtcd(ctx, http.MethodPost, "/v3/maintenance/status", map[string]any{})
	if err != nil {
		return "", err
	}
	err = json.Unmarshal(body, &status)
	return status.Header.Revision, err
}

// CompactEtcdTo is CompactEtcd for the revisions before an older one. The API server's own watches, which may be a
// moment behind under a load, keep their history then, and so do those that its watch cache serves.
func (c *ControlPlane) CompactEtcdTo(ctx context.Context, revision string) error {
	_, err := c.callEtcd(ctx, http.MethodPost, "/v3/kv/compaction", map[string]any{"revision": revision, "physical": true})
	var refused *etcdError
	if errors.As(err, &refused) && refused.Code == alreadyCompacted {
		err = nil
	}
	if err != nil {
		return fmt.Errorf("compact etcd: %w", err)
	}
	return nil
}

// alreadyCompacted is gRPC's code (OutOfRange) for a compaction up to a revision that is compacted: nothing was written
// since the last one.
const alreadyCompacted = 11

// etcdError is an answer of etcd's gateway.
type etcdError struct {
	Code    int
	Message string
}

func (e *etcdError) Error() string { return fmt.Sprintf("%s (code %d)", e.Message, e.Code) }

func (c *ControlPlane) callEtcd(ctx context.Context, method, path string, request any) ([]byte, error) {
	return callEtcd(ctx, method, c.etcdURL+path, request)
}

func callEtcd(ctx context.Context, method, url string, request any) ([]byte, error) {
	body, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Close = true // no idle connection stays behind
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	answer, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	var refused etcdError
	if resp.StatusCode != http.StatusOK && json.Unmarshal(answer, &refused) == nil && refused.Code != 0 {
		return nil, fmt.Errorf("etcd %s: %w", url, &refused)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("etcd %s: %s: %s", url, resp.Status, answer)
	}
	return answer, nil
}
