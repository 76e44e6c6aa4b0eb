// Command kubeferry carries the changes of a Kubernetes cluster to Kafka, NATS and webhooks.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/kubeferry/kubeferry/cmd/exporter/app"
)

// Exit codes.
const (
	exitFailure = 1
	exitUsage   = 2 // the command line or the configuration is wrong
)

func main() {
	// A closed standard output is an error that the stdout sink reports, not the end of the process.
	signal.Ignore(syscall.SIGPIPE)
	log.SetOutput(io.Discard) // net/http quotes there what a receiver sends that it did not wait for: perhaps a record
	ends := []os.Signal{syscall.SIGINT, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		ends = append(ends, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), ends...)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	err := newRoot().ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, err)
	var failure *app.FailureError
	if errors.As(err, &failure) {
		os.Exit(exitFailure)
	}
	os.Exit(exitUsage)
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "kubeferry",
		Short: "Send the changes of Kubernetes objects to Kafka, NATS and webhooks",
		Long: `kubeferry sends every change of the Kubernetes objects that you choose to Kafka, NATS, webhooks, files or the standard output. It sends
each change at least once, in order per object, and under the same id each time.

See what changes in your cluster, write a configuration, and run it:

  kubeferry tail
  kubeferry init deployments --cluster my-cluster -o kubeferry.yaml
  kubeferry validate --config kubeferry.yaml
  kubeferry run --config kubeferry.yaml --kubeconfig ~/.kube/config`,
		Version:       versionName(),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(newTail(), newInit(), newRun(), newValidate(), newSchema(), newRBAC(), newExplain(), newReplay(), newSnapshot(), newTrace(), newState(), newVersion())
	return root
}
