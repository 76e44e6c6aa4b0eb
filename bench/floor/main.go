// Command floor is what kubeferry's cost is measured against: it copies the bytes of a watch unread to a webhook, in
// batches of lines. It keeps no state, no order across a failure and no position, and ends at the first error. What
// kubeferry costs beyond it is the price of its promise.
//
//	floor -kubeconfig FILE -path /api/v1/events -url http://127.0.0.1:8000 [-live] [-linger 5ms] [-batch 100]
package main

import (
	"context"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

func main() {
	kubeconfig := flag.String("kubeconfig", "", "kubeconfig `file`")
	server := flag.String("server", "", "address of the API server, instead of the kubeconfig's")
	path := flag.String("path", "/api/v1/events", "REST path of the collection to watch")
	live := flag.Bool("live", false, "begin with the next change instead of what exists")
	target := flag.String("url", "", "webhook to send to")
	linger := flag.Duration("linger", 5*time.Millisecond, "how long a batch that is not full waits for more lines")
	batch := flag.Int("batch", 100, "the most lines in one request")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *server, *kubeconfig, *path, *live, newSender(*target, *batch, *linger)); err != nil && ctx.Err() == nil {
		fmt.Fprintln(os.Stderr, "floor:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, server, kubeconfig, path string, live bool, s *sender) error {
	config, err := clientcmd.BuildConfigFromFlags(server, kubeconfig)
	if err != nil {
		return err
	}
	client, err := rest.HTTPClientFor(config) // the TLS and HTTP/2 that kubeferry has
	if err != nil {
		return err
	}
	body, err := open(ctx, client, config.Host+path, live)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }()
	fmt.Fprintln(os.Stderr, "floor: watching")
	return s.copy(ctx, body, http.DefaultClient)
}
