package controlplane

import (
	"fmt"
	"path/filepath"

	"github.com/kubeferry/kubeferry/test/internal/cache"
	"github.com/kubeferry/kubeferry/test/internal/process"
)

// StartControllers runs the controllers that make Pods of Deployments, evict them and notice that a node is gone, and the scheduler. A
// node is gone sooner here than with their defaults: once it has not renewed its Lease for 5 s. [PrepareControllers] belongs before.
func (c *ControlPlane) StartControllers() error {
	r, err := controllers.load()
	if err != nil {
		return err
	}
	dir, err := cache.Find(r.cacheName())
	if err != nil {
		return fmt.Errorf("the controllers are missing: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, args := range map[string][]string{
		"kube-controller-manager": {
			"--controllers=deployment-controller,replicaset-controller,disruption-controller,node-lifecycle-controller," +
				"taint-eviction-controller,pod-garbage-collector-controller",
			"--node-monitor-period=1s", "--node-monitor-grace-period=5s",
		},
		"kube-scheduler": nil,
	} {
		p, err := process.Start(process.Options{
			Path: filepath.Join(dir, name),
			Args: append(args, "--kubeconfig="+c.KubeconfigFile(), "--leader-elect=false", "--secure-port=0"),
			Env:  []string{collectLess},
			Log:  filepath.Join(c.logDir, name+".log"),
		})
		if err != nil {
			return fmt.Errorf("start controllers: %w", err)
		}
		c.controllers = append(c.controllers, p)
	}
	return nil
}
