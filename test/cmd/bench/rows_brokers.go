package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/kubeferry/kubeferry/test/kafkatest"
	"github.com/kubeferry/kubeferry/test/natstest"
)

// broker is a server with fresh places for records: streams, topics.
type broker interface {
	// place makes a place and returns kubeferry's sink for it, and the arguments with which bench/direct fills it.
	place(ctx context.Context, name string) (sink string, direct []string, err error)
	// count is how many records a place holds.
	count(ctx context.Context, name string) (int64, error)
	remove(ctx context.Context, name string) error
}

// perCore is the target of one core, in records per second.
const perCore = 40_000

func intoJetStream(ctx context.Context, l *lab) ([]check, error) {
	return l.hosted(ctx, func(h *host) ([]check, error) {
		url := natstest.Start(h, nil).URL()
		conn, err := nats.Connect(url)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		js, err := jetstream.New(conn)
		if err != nil {
			return nil, err
		}
		return l.intoBroker(ctx, &jetStream{url: url, js: js})
	})
}

func intoKafka(ctx context.Context, l *lab) ([]check, error) {
	if err := kafkatest.Prepare(ctx, l.log); err != nil {
		return nil, err
	}
	return l.hosted(ctx, func(h *host) ([]check, error) {
		broker := kafkatest.StartWith(h, kafkatest.Options{Heap: "768m"}) //nolint:contextcheck // the host hands the context over
		client, err := kgo.NewClient(kgo.SeedBrokers(broker.Addr()))
		if err != nil {
			return nil, err
		}
		defer client.Close()
		return l.intoBroker(ctx, &kafkaBroker{broker: broker, admin: kadm.NewClient(client)})
	})
}

// intoBroker compares kubeferry, on one core, with the client library that it uses, driven directly.
func (l *lab) intoBroker(ctx context.Context, b broker) ([]check, error) {
	n, err := l.loadEvents(ctx)
	if err != nil {
		return nil, err
	}
	if err := l.build(ctx, "direct", "./bench/direct"); err != nil {
		return nil, err
	}
	of, err := l.paired(ctx,
		side{name: "library", run: func(ctx context.Context) (sample, error) { return l.direct(ctx, b, n) }},
		side{name: "kubeferry", run: func(ctx context.Context) (sample, error) { return l.intoPlace(ctx, b, n) }})
	if err != nil {
		return nil, err
	}
	onCore := func(s sample) float64 { return float64(s.Records) / s.CPU.Seconds() }
	sides := of.named("library", "")
	// By CPU time and not by the clock: on a machine of few cores the API server and the broker set the pace.
	core := sides.against("records per second of CPU", onCore, nil)
	core.Target, core.Outcome = "≥ 40,000 or ≥ 0.8 × library", missed
	if median(each(of.b, onCore)) >= perCore || of.ratio(onCore) >= 0.8 {
		core.Outcome = met
	}
	return []check{core, sides.against("records/s, all on this machine", speed, nil), sides.against("peak RSS, MiB", peak, nil)}, nil
}

func (l *lab) nextPlace() string {
	l.runs++
	return fmt.Sprintf("bench-%d", l.runs)
}

// direct runs the client library.
func (l *lab) direct(ctx context.Context, b broker, n int) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	name := l.nextPlace()
	_, args, err := b.place(ctx, name)
	if err != nil {
		return sample{}, err
	}
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, l.programs["direct"], append(args, "-records", strconv.Itoa(n))...)
	cmd.Env = append(cmd.Environ(), "GOMAXPROCS=1")
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return sample{}, fmt.Errorf("%w: %s", err, stderr.String())
	}
	rate, err := strconv.ParseFloat(string(bytes.TrimSpace(out)), 64)
	if err != nil {
		return sample{}, err
	}
	if count, err := b.count(ctx, name); err != nil || count != int64(n) {
		return sample{}, fmt.Errorf("the broker has %d records, want %d: %w", count, n, cmp.Or(err, errors.New("some were lost")))
	}
	return sample{
		CPU: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(), Peak: peakOf(cmd.ProcessState),
		Records: int64(n), Stream: time.Duration(float64(n) / rate * float64(time.Second)),
	}, b.remove(ctx, name)
}

// intoPlace runs kubeferry until the broker has n records.
func (l *lab) intoPlace(ctx context.Context, b broker, n int) (sample, error) {
	ctx, cancel := context.WithTimeout(ctx, runTimeout)
	defer cancel()
	name := l.nextPlace()
	e := events()
	var err error
	if e.sink, _, err = b.place(ctx, name); err != nil {
		return sample{}, err
	}
	e.procs = 1
	s, err := l.startExporter(e)
	if err != nil {
		return sample{}, err
	}
	defer s.stop()
	var got tally
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for got.records < int64(n) {
		select {
		case <-tick.C:
		case <-s.process.Done():
			return sample{}, s.explain(fmt.Errorf("it ended after %d records", got.records))
		case <-ctx.Done():
			return sample{}, s.explain(fmt.Errorf("%w: %d of %d records arrived", ctx.Err(), got.records, n))
		}
		count, err := b.count(ctx, name)
		if err != nil {
			return sample{}, err
		}
		if got.records, got.last = count, time.Now(); count > 0 && got.first.IsZero() {
			got.first = got.last
		}
	}
	taken, err := s.sample(ctx, got, usage{})
	if err != nil {
		return sample{}, err
	}
	return taken, b.remove(ctx, name)
}

type jetStream struct {
	url string
	js  jetstream.JetStream
}

func (j *jetStream) place(ctx context.Context, name string) (sink string, direct []string, err error) {
	_, err = j.js.CreateStream(ctx, jetstream.StreamConfig{
		Name: name, Subjects: []string{name + ".>"}, Duplicates: 10 * time.Minute, // what kubeferry makes
	})
	return fmt.Sprintf(`nats: {urls: [%q], subject: "%s.{group}.{resource}.{namespace}.{name}", stream: {name: %s}}`, j.url, name, name),
		[]string{"-nats", j.url, "-to", name}, err
}

func (j *jetStream) count(ctx context.Context, name string) (int64, error) {
	stream, err := j.js.Stream(ctx, name)
	if err != nil {
		return 0, err
	}
	return int64(stream.CachedInfo().State.Msgs), nil
}

func (j *jetStream) remove(ctx context.Context, name string) error {
	return j.js.DeleteStream(ctx, name)
}

type kafkaBroker struct {
	broker *kafkatest.Broker
	admin  *kadm.Client
}

const partitions = 4

func (k *kafkaBroker) place(_ context.Context, name string) (sink string, direct []string, err error) {
	k.broker.CreateTopic(name, partitions) //nolint:contextcheck // the host that it was started with has the context
	return fmt.Sprintf(`kafka: {brokers: [%q], topic: %s}`, k.broker.Addr(), name),
		[]string{"-kafka", k.broker.Addr(), "-to", name}, nil
}

func (k *kafkaBroker) count(ctx context.Context, name string) (int64, error) {
	offsets, err := k.admin.ListEndOffsets(ctx, name)
	if err == nil {
		err = offsets.Error()
	}
	if err != nil {
		return 0, err
	}
	var n int64
	offsets.Each(func(o kadm.ListedOffset) { n += o.Offset })
	return n, nil
}

func (k *kafkaBroker) remove(ctx context.Context, name string) error {
	_, err := k.admin.DeleteTopics(ctx, name)
	return err
}
