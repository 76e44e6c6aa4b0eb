// Command direct is what the Kafka and JetStream rows are measured against: the client library that kubeferry uses, driven
// with records made beforehand, in the batches of the sink's defaults. It prints the records per second of the sending.
//
//	direct -kafka HOST:PORT -to TOPIC | direct -nats URL -to SUBJECT  [-records 60000] [-size 1400]
package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
)

// batch is a call of the client library; the size of both sinks' default batches.
const batch = 500

// library sends n records from the first on, and returns once all are acknowledged.
type library interface {
	send(ctx context.Context, first, n int, body []byte) error
	close()
}

func main() {
	broker := flag.String("kafka", "", "address of a Kafka broker")
	server := flag.String("nats", "", "URL of a NATS server")
	to := flag.String("to", "", "topic or subject")
	records := flag.Int("records", 60000, "how many")
	size := flag.Int("size", 1400, "bytes of each: an Event of 1 KB in its envelope")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *broker, *server, *to, *records, *size); err != nil {
		fmt.Fprintln(os.Stderr, "direct:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, broker, server, to string, records, size int) error {
	l, workers, err := connect(ctx, broker, server, to)
	if err != nil {
		return err
	}
	defer l.close()
	noise := make([]byte, size)
	_, _ = rand.Read(noise) // never fails
	body := []byte(base64.StdEncoding.EncodeToString(noise)[:size])

	errs := make([]error, workers)
	var sending sync.WaitGroup
	begin := time.Now()
	for w := range workers {
		sending.Go(func() {
			for first := w * batch; first < records && errs[w] == nil; first += workers * batch {
				errs[w] = l.send(ctx, first, min(batch, records-first), body)
			}
		})
	}
	sending.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	fmt.Println(int(float64(records) / time.Since(begin).Seconds()))
	return nil
}

// connect returns the library and how many calls the sink that uses it has under way at once.
func connect(ctx context.Context, broker, server, to string) (library, int, error) {
	if broker != "" {
		k, err := newKafka(ctx, broker, to)
		return k, 4, err
	}
	n, err := newJetStream(server, to)
	return n, 4, err
}
