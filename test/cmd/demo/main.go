// Command demo shows kubeferry at work, with nothing but Go on the machine: it starts a real control plane and a NATS
// server with JetStream, runs two replicas of kubeferry between them, changes objects, and prints the records as they arrive. After
// a while it kills the replica that leads, and removes its state: the other one goes on, and no change is missing.
// Ctrl-C ends it and removes everything. With -for, or DEMO_FOR in the environment, it ends by itself, and fails unless
// every change has arrived.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/kubeferry/kubeferry/test/controlplane"
	"github.com/kubeferry/kubeferry/test/internal/assets"
	"github.com/kubeferry/kubeferry/test/internal/programs"
	"github.com/kubeferry/kubeferry/test/internal/progress"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := command(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errUsage):
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(2)
	case err != nil:
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("wrong usage")

// command is the program without the process around it.
func command(ctx context.Context, args []string, out *os.File, errOut io.Writer) error {
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(errOut)
	length := flags.Duration("for", 0, "how long to change objects, such as 10s; until Ctrl-C if 0 (environment: DEMO_FOR)")
	if text := os.Getenv("DEMO_FOR"); text != "" {
		if err := flags.Set("for", text); err != nil {
			return fmt.Errorf("%w: DEMO_FOR: %w", errUsage, err)
		}
	}
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return err
	} else if err != nil || flags.NArg() > 0 || *length < 0 {
		return fmt.Errorf("%w: demo [-for 10s]", errUsage)
	}
	err := show(ctx, *length, newScreen(out))
	if ctx.Err() != nil && *length == 0 {
		return nil // Ctrl-C is how it ends; whatever failed since then failed for that
	}
	return err
}

// show runs the demo until ctx ends or, if length is not 0, that time is over.
func show(ctx context.Context, length time.Duration, screen *screen) error {
	dir, err := os.MkdirTemp("", "kubeferry-demo-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()

	if err := prepare(ctx, screen); err != nil {
		return err
	}
	screen.say("starting a Kubernetes API server")
	cluster, err := startCluster(ctx)
	if err != nil {
		return err
	}
	defer cluster.stop()
	screen.say("starting a NATS server with JetStream")
	bus, err := startBus(dir)
	if err != nil {
		return err
	}
	defer bus.stop()

	screen.say("starting kubeferry, two replicas")
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := cluster.account(ctx, kubeconfig); err != nil {
		return err
	}
	leader, err := startExporter(ctx, filepath.Join(dir, "one"), kubeconfig, bus.url())
	if err != nil {
		return err
	}
	defer leader.stop()
	standby, err := startExporter(ctx, filepath.Join(dir, "two"), kubeconfig, bus.url()) // ready once it has the leader's state
	if err != nil {
		return err
	}
	defer standby.stop()
	records, stopReading, err := bus.read(ctx)
	if err != nil {
		return errors.Join(err, leader.problem())
	}
	defer stopReading()

	screen.hints(leader.address, bus.url(), cluster.kubeconfig())
	tally := newTally()
	if err := changeAndPrint(ctx, length, cluster, leader, standby, records, tally, screen); err != nil {
		return err
	}
	screen.say(tally.String())
	return tally.check()
}

// prepare builds what the demo runs. If that takes long, it says before what comes, and how long it takes.
func prepare(ctx context.Context, screen *screen) error {
	if _, err := controlplane.Assets(); err != nil {
		screen.say("the demo runs a Kubernetes API server, etcd, a NATS server, and two replicas of kubeferry between them, and shows what they send;")
		screen.say("first the API server and etcd are downloaded or, where that cannot be, built from source: about 4 to 8 minutes on 2 cores, once")
	}
	return assets.Beside(ctx, progress.New(screen, screen.file), controlplane.Prepare, programs.Exporter().Build)
}

// arrivalTimeout is how long the last changes may take to arrive.
const arrivalTimeout = 20 * time.Second

// firstAct is how long the first replica leads, if there is no end.
const firstAct = 15 * time.Second

// changeAndPrint makes one change after the other and prints what arrives meanwhile; at the end it waits for what is
// still on its way. Halfway it kills the leader.
func changeAndPrint(ctx context.Context, length time.Duration, cluster *cluster, leader, standby *exporter, records <-chan *record, tally *tally, screen *screen) error {
	pause := 700 * time.Millisecond
	var end, late <-chan time.Time
	var killed time.Time // zero until the leader is killed, and once the standby leads
	kill := time.After(firstAct)
	if length > 0 {
		kill = time.After(length / 2)
		end = time.After(length)
		pause = max(min(pause, length/time.Duration(len(cluster.script)+2)), 10*time.Millisecond) // one whole round
	}
	for _, id := range cluster.made {
		tally.expect(id)
	}
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		var arrived *record
		var summary string
		select {
		case r := <-records:
			arrived, summary = r, tally.summarize(r)
		case <-tick.C:
			id, err := cluster.change(ctx)
			if err != nil {
				return err
			}
			tally.expect(id)
		case <-kill:
			screen.say("act two: the leader is killed with SIGKILL, and its state removed; the changes go on")
			if err := leader.kill(); err != nil {
				return err
			}
			killed, leader = time.Now(), standby
		case <-end:
			tick.Stop()
			end, late = nil, time.After(arrivalTimeout)
		case <-late:
			return fmt.Errorf("%w\n%s", tally.check(), leader.log())
		case <-leader.done():
			return leader.problem()
		case <-ctx.Done():
			screen.say(tally.String())
			return fmt.Errorf("interrupted: %w", context.Cause(ctx))
		}
		if !killed.IsZero() && standby.logged("leading") {
			screen.say(fmt.Sprintf("the standby leads, %.1f s after that; its metrics: curl -s http://%s/metrics", time.Since(killed).Seconds(), standby.address))
			killed = time.Time{}
		}
		if arrived != nil {
			screen.record(arrived, summary)
		}
		if late != nil && tally.complete() {
			return nil
		}
	}
}
