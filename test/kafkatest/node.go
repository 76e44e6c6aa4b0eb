package kafkatest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/kubeferry/kubeferry/test/internal/freeport"
	"github.com/kubeferry/kubeferry/test/internal/process"
)

var errPortTaken = errors.New("port taken by another process")

// javaNode is Apache Kafka, broker and controller in one process.
type javaNode struct {
	java    *java
	dir     string
	port    int
	heap    string
	process *process.Process
}

// newJavaNode writes the node's configuration into dir and formats its storage.
func newJavaNode(ctx context.Context, j *java, dir string, port int, opts Options) (*javaNode, error) {
	n := &javaNode{java: j, dir: dir, port: port, heap: opts.Heap}
	if n.heap == "" {
		n.heap = "384m"
	}
	controller, err := freeport.Pick()
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(n.config(), []byte(properties(dir, port, controller, opts.Properties)), 0o600); err != nil {
		return nil, err
	}
	// Any 16 bytes in base64 do as a cluster's id.
	return n, j.run(ctx, "kafka.tools.StorageTool", "format", "-t", "a3ViZWZlcnJ5LXRlc3RzMA", "-c", n.config())
}

func (n *javaNode) config() string { return filepath.Join(n.dir, "server.properties") }

func (n *javaNode) start(ctx context.Context) error {
	p, err := process.Start(process.Options{
		Path: n.java.path,
		Args: []string{
			"-Xms64m", "-Xmx" + n.heap, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
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
	err = p.WaitReady(ctx, func(ctx context.Context) error { return answers(ctx, freeport.Addr(n.port)) })
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

// properties is the text of server.properties.
func properties(dir string, port, controller int, extra map[string]string) string {
	broker := freeport.Addr(port)
	p := map[string]string{
		"process.roles":                            "broker,controller",
		"node.id":                                  "1",
		"controller.quorum.voters":                 "1@" + freeport.Addr(controller),
		"controller.listener.names":                "CONTROLLER",
		"listeners":                                "PLAINTEXT://" + broker + ",CONTROLLER://" + freeport.Addr(controller),
		"advertised.listeners":                     "PLAINTEXT://" + broker,
		"listener.security.protocol.map":           "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL",
		"log.dirs":                                 filepath.Join(dir, "data"),
		"auto.create.topics.enable":                "false",
		"broker.heartbeat.interval.ms":             "500",
		"broker.session.timeout.ms":                "3000", // after a kill, the broker waits for its former self to expire
		"group.initial.rebalance.delay.ms":         "0",
		"log.cleaner.dedupe.buffer.size":           "16777216",
		"num.network.threads":                      "2",
		"num.io.threads":                           "2",
		"offsets.topic.num.partitions":             "1",
		"offsets.topic.replication.factor":         "1",
		"transaction.state.log.num.partitions":     "1",
		"transaction.state.log.replication.factor": "1",
		"transaction.state.log.min.isr":            "1",
	}
	maps.Copy(p, extra)
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(p)) {
		fmt.Fprintf(&b, "%s=%s\n", k, strings.ReplaceAll(p[k], `\`, `\\`))
	}
	return b.String()
}

// fakeNode is the stand-in where no Java is: franz-go's in-process implementation of the protocol.
type fakeNode struct {
	dir     string
	port    int
	cluster *kfake.Cluster
}

func (n *fakeNode) start(ctx context.Context) error {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.Ports(n.port), kfake.DataDir(n.dir))
	if err != nil {
		return err
	}
	n.cluster = cluster
	return poll(ctx, func() error { return answers(ctx, freeport.Addr(n.port)) })
}

func (n *fakeNode) kill() {
	if n.cluster != nil {
		n.cluster.Close()
		n.cluster = nil
	}
}
