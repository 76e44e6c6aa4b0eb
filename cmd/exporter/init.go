package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/cmd/exporter/app"
	"github.com/kubeferry/kubeferry/cmd/exporter/starter"
)

func newInit() *cobra.Command {
	var output, kubeconfig, kubeContext string
	answers := starter.Answers{}
	command := &cobra.Command{
		Use:   "init [RESOURCE…]",
		Short: "Write a first configuration file",
		Long: `init writes a configuration with comments, to the standard output or to a new file. It never overwrites a file. If you run it at a
terminal and name no resource, it asks you for what it needs.

Resources have the names that kubectl takes. A name such as apps/v1/deployments needs no cluster. Other names are looked up in the cluster
of the kubeconfig.`,
		Example: `  kubeferry init -o kubeferry.yaml
  kubeferry init apps/v1/deployments v1/configmaps --cluster prod-eu-1 > kubeferry.yaml
  kubeferry init deploy,pods -n shop --sink nats --address nats://nats:4222 --cluster prod-eu-1 -o kubeferry.yaml
  kubeferry init widgets.example.com --cluster prod-eu-1 --sink kafka --address kafka-0:9092,kafka-1:9092 --state-dir /var/lib/kubeferry`,
		RunE: func(command *cobra.Command, args []string) error {
			answers.Resources = args
			if len(args) == 0 {
				if !isTerminal(command.InOrStdin()) {
					return errors.New("name the resources to watch: kubeferry init apps/v1/deployments v1/configmaps --cluster NAME")
				}
				if err := answers.Prompt(command.InOrStdin(), command.ErrOrStderr()); err != nil {
					return err
				}
			}
			file, err := starter.Write(command.Context(), answers, kinds(), func() (*rest.Config, error) { return clusterConfig(kubeconfig, kubeContext) })
			if err != nil {
				return err
			}
			if output == "" {
				_, err = command.OutOrStdout().Write(file)
				return err
			}
			if err := writeNew(output, file); err != nil {
				return &app.FailureError{Err: err}
			}
			fmt.Fprintf(command.ErrOrStderr(), "wrote %[1]s; see what it would send: kubeferry tail --config %[1]s\n", output)
			return nil
		},
		ValidArgsFunction: completeServed(&kubeconfig, &kubeContext),
	}
	f := command.Flags()
	f.StringSliceVarP(&answers.Namespaces, "namespace", "n", nil, "watch these `namespaces` only: names or globs, joined by commas")
	f.StringVar(&answers.Sink, "sink", "stdout", "`kind` of sink: "+starter.Sinks())
	f.StringVar(&answers.Address, "address", "", "`address` of the sink: brokers, URLs or a path")
	f.StringVar(&answers.Cluster, "cluster", "", "`name` of the cluster, which is part of every id: its own for each cluster, and never changed later")
	f.StringVar(&answers.StateDir, "state-dir", "", "`directory` for the state, which makes restarts lose nothing")
	f.StringVarP(&output, "output", "o", "", "the `file` to write; it must not exist")
	addClusterFlags(command, &kubeconfig, &kubeContext)
	return command
}

// writeNew writes a file that does not exist yet.
func writeNew(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close())
}
