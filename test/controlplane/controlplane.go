package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/test/internal/process"
)

// Options change how a control plane is started. The zero value is a good one.
type Options struct {
	// APIServerFlags are added to the API server's command line after the standard ones, so that they win:
	// "--feature-gates=WatchList=false", "--etcd-compaction-interval=2s", "--watch-cache=false".
	APIServerFlags []string
	// EtcdFlags are added to etcd's.
	EtcdFlags []string
	// EventsEtcd keeps Events in an etcd of their own.
	EventsEtcd bool
	// LogDir, if set, is where etcd.log and kube-apiserver.log stay after Stop.
	LogDir string
}

// ControlPlane is a running etcd and kube-apiserver. Its methods may be called from several goroutines.
type ControlPlane struct {
	opts    Options
	assets  string
	dir     string // everything it writes; removed by Stop
	logDir  string
	etcdURL string
	port    int // of the API server, for its whole life
	pki     *pki
	config  *rest.Config

	mu   sync.Mutex // guards what follows
	etcd *process.Process
	// eventsEtcd is nil unless Events have one.
	eventsEtcd    *process.Process
	eventsEtcdURL string
	apiServer     *process.Process
	// controllers are what StartControllers started.
	controllers []*process.Process
	stopped     bool
}

// startTimeout bounds one start of one program on a busy machine; 4 s is usual.
const startTimeout = 90 * time.Second

// Start runs a control plane and returns when it is ready for use. If it fails, nothing of it remains. ctx bounds the
// start only; end it with [ControlPlane.Stop]. The binaries must be there: see [Prepare].
func Start(ctx context.Context, opts Options) (*ControlPlane, error) {
	assets, err := Assets()
	if err != nil {
		return nil, err
	}
	// Ports are picked before the programs listen on them: if another process was faster, others are tried.
	const attempts = 3
	for attempt := 1; ; attempt++ {
		c, err := start(ctx, opts, assets)
		if err == nil {
			return c, nil
		}
		if attempt == attempts || ctx.Err() != nil || !errors.Is(err, errPortTaken) {
			return nil, fmt.Errorf("start control plane: %w", err)
		}
	}
}

func start(ctx context.Context, opts Options, assets string) (_ *ControlPlane, err error) {
	dir, err := os.MkdirTemp("", "kubeferry-controlplane-")
	if err != nil {
		return nil, err
	}
	c := &ControlPlane{opts: opts, assets: assets, dir: dir, logDir: dir}
	defer func() {
		if err != nil {
			c.Stop()
		}
	}()
	if opts.LogDir != "" {
		c.logDir = opts.LogDir
		if err := os.MkdirAll(c.logDir, 0o755); err != nil {
			return nil, err
		}
	}
	if c.pki, err = newPKI(dir); err != nil {
		return nil, err
	}
	if err := c.startEtcd(ctx); err != nil {
		return nil, err
	}
	if err := c.prepareAPIServer(); err != nil {
		return nil, err
	}
	if err := c.StartAPIServer(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// Config is a fresh configuration of a client with every right and without a rate limit.
func (c *ControlPlane) Config() *rest.Config { return rest.CopyConfig(c.config) }

// KubeconfigFile is the path of a kubeconfig for the same user as [ControlPlane.Config]; it is gone after Stop.
func (c *ControlPlane) KubeconfigFile() string { return filepath.Join(c.dir, "kubeconfig") }

// StartAPIServer starts the API server after [ControlPlane.KillAPIServer], on the same port with the same
// certificates, and returns when it is ready. It does nothing if the server runs.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.startAPIServer(ctx)
}

// KillAPIServer ends the API server with SIGKILL, as a crash would. The data stay in etcd.
func (c *ControlPlane) KillAPIServer() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.apiServer != nil {
		c.apiServer.Kill()
		c.apiServer = nil
	}
}

// RestartAPIServer kills the API server and starts it again, this time with more flags. All connections break, and all history is gone.
func (c *ControlPlane) RestartAPIServer(ctx context.Context, flags ...string) error {
	c.KillAPIServer()
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.startAPIServer(ctx, flags...); err != nil {
		return fmt.Errorf("restart API server: %w", err)
	}
	return nil
}

// Stop ends all programs and removes their files. It may be called more than once.
func (c *ControlPlane) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Nothing is worth saving, and a graceful end of the API server waits a minute for open watches.
	for _, p := range append(c.controllers, c.apiServer, c.etcd, c.eventsEtcd) {
		if p != nil {
			p.Kill()
		}
	}
	c.apiServer, c.etcd, c.eventsEtcd, c.controllers, c.stopped = nil, nil, nil, nil, true
	_ = os.RemoveAll(c.dir)
}
