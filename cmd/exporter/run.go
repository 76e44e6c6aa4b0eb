package main

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/kubeferry/kubeferry/cmd/exporter/app"
	"github.com/kubeferry/kubeferry/cmd/exporter/config"
)

func newRun() *cobra.Command {
	var file, logLevel, logFormat, kubeconfig, kubeContext string
	command := &cobra.Command{
		Use:   "run",
		Short: "Watch the cluster and deliver its changes",
		Long: `run watches the resources that the configuration names, and delivers every change. It goes on until it gets SIGTERM, SIGINT or SIGHUP.
Then it stops watching, delivers what waits for up to shutdown.grace, and exits. A second signal ends it at once.

In a cluster it uses the ServiceAccount of its Pod. Elsewhere it uses the kubeconfig, as kubectl does. It starts even if the API server
and the sinks are away. The log, /status and the metrics say what it waits for.`,
		Example: "  kubeferry run --config kubeferry.yaml --kubeconfig ~/.kube/config --context staging",
		Args:    cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			loaded, warnings, err := config.Load(file, config.Options{Kinds: kinds()})
			if err != nil {
				return err
			}
			if err := loaded.Log.Override(logLevel, logFormat); err != nil {
				return err
			}
			logger := app.NewLogger(loaded.Log, command.ErrOrStderr())
			for _, warning := range warnings {
				logger.Warn("configuration", "warning", warning.String())
			}
			cluster, err := clusterConfig(kubeconfig, kubeContext)
			if err != nil {
				return err
			}
			return app.Run(command.Context(), loaded, cluster, versionName(), nil, logger)
		},
	}
	addConfigFlag(command, &file)
	command.Flags().StringVar(&logLevel, "log-level", "", "debug, info, warn or error, in place of the file's log.level")
	command.Flags().StringVar(&logFormat, "log-format", "", "json or text, in place of the file's log.format")
	addClusterFlags(command, &kubeconfig, &kubeContext)
	return command
}

func addClusterFlags(command *cobra.Command, kubeconfig, kubeContext *string) {
	command.Flags().StringVar(kubeconfig, "kubeconfig", "", "the kubeconfig `file`; default: KUBECONFIG, ~/.kube/config, or the Pod's ServiceAccount")
	command.Flags().StringVar(kubeContext, "context", "", "the kubeconfig's context to use; default: its current one")
}

// clientConfig finds the API server and the namespace as kubectl does, or by the Pod's ServiceAccount.
func clientConfig(kubeconfig, kubeContext string) clientcmd.ClientConfig {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: kubeContext})
}

func clusterConfig(kubeconfig, kubeContext string) (*rest.Config, error) {
	cluster, err := clientConfig(kubeconfig, kubeContext).ClientConfig()
	if clientcmd.IsEmptyConfig(err) {
		err = errors.New("there is no kubeconfig")
	}
	if err != nil {
		return nil, fmt.Errorf("no cluster to watch: %w (give --kubeconfig, or run in a Pod with a ServiceAccount)", err)
	}
	cluster.UserAgent = app.UserAgent(versionName())
	return cluster, nil
}
