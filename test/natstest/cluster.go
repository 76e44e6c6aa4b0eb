package natstest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/kubeferry/kubeferry/test/internal/freeport"
	"github.com/kubeferry/kubeferry/test/internal/process"
	"github.com/kubeferry/kubeferry/test/internal/programs"
)

// Cluster is one nats-server, or several that form a cluster, each a process of its own. Its methods fail the test
// instead of returning errors, so they belong on the test's own goroutine.
type Cluster struct {
	access
	nodes []*clusterNode
}

type clusterNode struct {
	name, path, dir string
	port, routes    int
	process         *process.Process
}

// StartCluster runs n servers that end with the test.
func StartCluster(tb testing.TB, n int) *Cluster {
	tb.Helper()
	path, err := programs.NATSServer().Path()
	if err != nil {
		tb.Fatal(err)
	}
	dir := tb.TempDir()
	for attempt := 1; ; attempt++ {
		c := &Cluster{access: access{tb: tb}}
		err := c.configure(path, fmt.Sprintf("%s/%d", dir, attempt), n)
		if err == nil {
			tb.Cleanup(c.Stop)
			err = c.start(c.nodes...)
		}
		if err == nil {
			return c
		}
		c.Stop()
		if attempt == 3 || !strings.Contains(err.Error(), "address already in use") {
			tb.Fatalf("start NATS: %v", err)
		}
	}
}

// URLs are where clients connect. They stay the same.
func (c *Cluster) URLs() []string { return strings.Split(c.urls, ",") }

// Kill kills a server, as a crash would; its streams are there again after [Cluster.Revive].
func (c *Cluster) Kill(server int) { c.nodes[server].kill() }

// Revive starts a server that was killed.
func (c *Cluster) Revive(server int) {
	c.tb.Helper()
	if err := c.start(c.nodes[server]); err != nil {
		c.tb.Fatalf("restart %s: %v", c.nodes[server].name, err)
	}
}

// Stop kills all servers.
func (c *Cluster) Stop() {
	for _, n := range c.nodes {
		n.kill()
	}
}

// Leader returns the server that leads a stream.
func (c *Cluster) Leader(ctx context.Context, stream string) int {
	c.tb.Helper()
	if info := c.StreamInfo(ctx, stream); info.Cluster != nil {
		for i, n := range c.nodes {
			if n.name == info.Cluster.Leader {
				return i
			}
		}
	}
	c.tb.Fatalf("stream %q has no leader", stream)
	return 0
}

func (c *Cluster) configure(path, dir string, n int) error {
	var urls, routes []string
	for i := range n {
		node := &clusterNode{name: fmt.Sprintf("n%d", i), path: path, dir: filepath.Join(dir, fmt.Sprint(i))}
		for _, port := range []*int{&node.port, &node.routes} {
			var err error
			if *port, err = freeport.Pick(); err != nil {
				return err
			}
		}
		c.nodes = append(c.nodes, node)
		urls = append(urls, "nats://"+freeport.Addr(node.port))
		routes = append(routes, `"nats://`+freeport.Addr(node.routes)+`"`)
	}
	c.urls = strings.Join(urls, ",")
	for _, node := range c.nodes {
		config := fmt.Sprintf("server_name: %s\nlisten: %q\njetstream { store_dir: %q, max_file: 8GB }\n",
			node.name, freeport.Addr(node.port), filepath.Join(node.dir, "data"))
		if n > 1 {
			config += fmt.Sprintf("cluster { name: test, listen: %q, routes: [%s] }\n", freeport.Addr(node.routes), strings.Join(routes, ", "))
		}
		if err := os.MkdirAll(node.dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(node.dir, "nats.conf"), []byte(config), 0o600); err != nil {
			return err
		}
	}
	return nil
}

// start returns when all the nodes answer for JetStream, which those of a cluster do once a majority agreed.
func (c *Cluster) start(nodes ...*clusterNode) error {
	ctx, cancel := context.WithTimeout(c.tb.Context(), 2*time.Minute)
	defer cancel()
	for _, n := range nodes {
		var err error
		if n.process, err = process.Start(process.Options{
			Path: n.path, Args: []string{"-c", "nats.conf"}, Dir: n.dir, Log: filepath.Join(n.dir, "nats.log"),
		}); err != nil {
			return err
		}
	}
	for _, n := range nodes {
		if err := n.process.WaitReady(ctx, n.answers); err != nil {
			return err
		}
	}
	return nil
}

func (n *clusterNode) answers(ctx context.Context) error {
	conn, err := nats.Connect("nats://" + freeport.Addr(n.port))
	if err != nil {
		return err
	}
	defer conn.Close()
	js, err := jetstream.New(conn)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	_, err = js.AccountInfo(ctx)
	return err
}

func (n *clusterNode) kill() {
	if n.process != nil {
		n.process.Kill()
		n.process = nil
	}
}
