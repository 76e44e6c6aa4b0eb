package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/kubeferry/kubeferry/test/internal/freeport"
	"github.com/kubeferry/kubeferry/test/internal/process"
)

var errPortTaken = errors.New("port taken by another process")

// newNodes makes what opts require, in directories below dir; nothing runs yet.
func newNodes(ctx context.Context, j *java, dir string, opts Options) ([]node, error) {
	controller, err := freeport.Pick()
	if err != nil {
		return nil, err
	}
	if j == nil {
		return []node{&fakeNode{dir: dir, port: controller}}, os.MkdirAll(dir, 0o755)
	}
	var nodes []node
	errs := make([]error, opts.Brokers)
	var wg sync.WaitGroup
	for i := range opts.Brokers {
		id := i + 1
		n := &javaNode{java: j, id: id, dir: filepath.Join(dir, strconv.Itoa(id)), controller: controller, opts: opts}
		nodes = append(nodes, n)
		wg.Go(func() { errs[i] = n.format(ctx) })
	}
	wg.Wait()
	return nodes, errors.Join(errs...)
}

// javaNode is Apache Kafka; the first is broker and controller in one process.
type javaNode struct {
	java       *java
	id         int
	dir        string
	controller int // port of the first node's
	ports      map[Listener]int
	opts       Options
	process    *process.Process
}

func (n *javaNode) addr(listener Listener) string { return freeport.Addr(n.ports[listener]) }

func (n *javaNode) config() string { return filepath.Join(n.dir, "server.properties") }

// format picks ports, writes the node's configuration and formats its storage.
func (n *javaNode) format(ctx context.Context) error {
	if err := os.MkdirAll(n.dir, 0o755); err != nil {
		return err
	}
	n.ports = map[Listener]int{}
	for _, listener := range n.opts.listeners() {
		port, err := freeport.Pick()
		if err != nil {
			return err
		}
		n.ports[listener] = port
	}
	if err := n.configure(); err != nil {
		return err
	}
	// Any 16 bytes in base64 do as a cluster's id.
	args := []string{"format", "-t", "a3ViZWZlcnJ5LXRlc3RzMA", "-c", n.config()}
	if n.opts.Secure != nil && n.id == 1 {
		args = append(args, n.opts.Secure.scram()...)
	}
	_, err := n.java.run(ctx, "kafka.tools.StorageTool", args...)
	return err
}

// configure writes server.properties and the files that it names.
func (n *javaNode) configure() error {
	p := n.properties()
	if n.opts.Secure != nil {
		if err := n.opts.secure(n.dir, p); err != nil {
			return err
		}
	}
	maps.Copy(p, n.opts.Properties)
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%s=%s\n", k, strings.ReplaceAll(p[k], `\`, `\\`))
	}
	return os.WriteFile(n.config(), []byte(b.String()), 0o600)
}

func (n *javaNode) properties() map[string]string {
	var listeners, advertised []string
	protocols := []string{"CONTROLLER:PLAINTEXT"}
	for _, listener := range n.opts.listeners() {
		listeners = append(listeners, fmt.Sprintf("%s://%s", listener, n.addr(listener)))
		address := n.addr(listener)
		if also, ok := n.opts.Also[listener]; ok {
			address = also.Advertise
		}
		advertised = append(advertised, fmt.Sprintf("%s://%s", listener, address))
		protocols = append(protocols, fmt.Sprintf("%s:%s", listener, protocolOf[n.opts.like(listener)]))
	}
	roles, replicas := "broker", strconv.Itoa(n.opts.Brokers)
	if n.id == 1 {
		roles = "broker,controller"
		listeners = append(listeners, "CONTROLLER://"+freeport.Addr(n.controller))
	}
	return map[string]string{
		"process.roles":                            roles,
		"node.id":                                  strconv.Itoa(n.id),
		"controller.quorum.voters":                 "1@" + freeport.Addr(n.controller),
		"controller.listener.names":                "CONTROLLER",
		"listeners":                                strings.Join(listeners, ","),
		"advertised.listeners":                     strings.Join(advertised, ","),
		"listener.security.protocol.map":           strings.Join(protocols, ","),
		"inter.broker.listener.name":               string(Plaintext),
		"log.dirs":                                 filepath.Join(n.dir, "data"),
		"auto.create.topics.enable":                "false",
		"broker.heartbeat.interval.ms":             "500",
		"broker.session.timeout.ms":                "3000", // after a kill, the broker waits for its former self to expire
		"group.initial.rebalance.delay.ms":         "0",
		"log.cleaner.dedupe.buffer.size":           "16777216",
		"num.network.threads":                      "2",
		"num.io.threads":                           "2",
		"offsets.topic.num.partitions":             "1",
		"default.replication.factor":               replicas,
		"offsets.topic.replication.factor":         replicas,
		"transaction.state.log.num.partitions":     "1",
		"transaction.state.log.replication.factor": replicas,
		"transaction.state.log.min.isr":            "1",
	}
}

func (n *javaNode) start(ctx context.Context) error {
	heap := n.opts.Heap
	if heap == "" {
		heap = "384m"
	}
	p, err := process.Start(process.Options{
		Path: n.java.path,
		Args: []string{
			"-Xms64m", "-Xmx" + heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData",
			"-Djava.io.tmpdir=" + n.dir, // a killed process leaves the libraries that it had unpacked
			"-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true",
			"-cp", n.java.classpath, "kafka.Kafka", n.config(),
		},
		Dir: n.dir,
		Log: filepath.Join(n.dir, "kafka.log"),
	})
	if err != nil {
		return err
	}
	n.process = p
	err = p.WaitReady(ctx, func(ctx context.Context) error { return answers(ctx, n.addr(Plaintext), int32(n.id)) })
	if err != nil && strings.Contains(err.Error(), "Address already in use") {
		return fmt.Errorf("%w: %w", errPortTaken, err)
	}
	return err
}

func (n *javaNode) kill() {
	if n.process != nil {
		n.process.Kill()
		n.process = nil
	}
}

// fakeNode is the stand-in where no Java is: franz-go's in-process implementation of the protocol.
type fakeNode struct {
	dir     string
	port    int
	cluster *kfake.Cluster
}

func (n *fakeNode) addr(Listener) string { return freeport.Addr(n.port) }

func (n *fakeNode) start(ctx context.Context) error {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(n.port), kfake.DataDir(n.dir))
	if err != nil {
		return err
	}
	n.cluster = cluster
	return poll(ctx, func() error { return answers(ctx, n.addr(Plaintext), 0) })
}

func (n *fakeNode) kill() {
	if n.cluster != nil {
		n.cluster.Close()
		n.cluster = nil
	}
}
