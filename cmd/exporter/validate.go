package main

import (
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/kubeferry/kubeferry/cmd/exporter/app"
	"github.com/kubeferry/kubeferry/cmd/exporter/config"
)

func newValidate() *cobra.Command {
	var file, envFile, kubeconfig, kubeContext string
	var connecting, allowUnset bool
	command := &cobra.Command{
		Use: "validate",
		Example: `  kubeferry validate --config kubeferry.yaml
  kubeferry validate --config kubeferry.yaml --env-file ci.env    # lines such as NATS_URL=nats://nats:4222
  kubeferry validate --config kubeferry.yaml --allow-unset
  kubeferry validate --config kubeferry.yaml --connect`,
		Short: "Check a configuration",
		Long: `validate reads a configuration and lists everything that is wrong with it, with line and path. It needs no cluster and no sink. It exits
with 0 if the file is right, and with 2 if it is wrong. A warning names a choice that works, but gives up a promise.

In CI the variables and files of the Pod may be missing. --env-file reads variables from a file, as docker run does. These replace the
variables of the environment. With --allow-unset, values that need a missing variable or file are not checked, and a warning names them.

With --connect it also asks the API server whether it serves every resource, knows the selectors and grants every right. It connects to
every sink, logs in, and looks for the topic, the stream or the endpoint. It sends no record. It prints a line for each check. If one of
them fails, it says what to do, and exits with 1. Run it where kubeferry will run, because names, routes, rights and files may differ
elsewhere.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			variables := map[string]string{}
			if envFile != "" {
				var err error
				if variables, err = config.ReadEnvFile(envFile); err != nil {
					return err
				}
			}
			getenv := func(name string) (string, bool) {
				if value, ok := variables[name]; ok {
					return value, true
				}
				return os.LookupEnv(name)
			}
			loaded, warned, err := config.Load(file, config.Options{Kinds: kinds(), Getenv: getenv, AllowUnset: allowUnset})
			for _, warning := range warned {
				fmt.Fprintln(command.ErrOrStderr(), "warning:", warning)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(command.OutOrStdout(), "%s is valid. Sources: %d, pipelines: %d, sinks: %d\n",
				file, len(loaded.Sources), len(loaded.Pipelines), len(loaded.Sinks))
			if !connecting {
				return nil
			}
			cluster, err := clusterConfig(kubeconfig, kubeContext)
			if err != nil {
				return err
			}
			return app.Connect(command.Context(), loaded, cluster, versionName(), command.OutOrStdout(), warnings(command))
		},
	}
	addConfigFlag(command, &file)
	command.Flags().StringVar(&envFile, "env-file", "", "read environment variables from a `file` of lines KEY=VALUE")
	command.Flags().BoolVar(&allowUnset, "allow-unset", false, "do not check values with variables that are not set, or files that are not there")
	command.Flags().BoolVar(&connecting, "connect", false, "also check resources and rights at the API server, and every sink, without sending a record")
	addClusterFlags(command, &kubeconfig, &kubeContext)
	command.MarkFlagsMutuallyExclusive("connect", "allow-unset")
	return command
}

// warnings returns a logger for what sinks report beside an error, of a stream that loses records for example.
func warnings(command *cobra.Command) *slog.Logger {
	return app.NewLogger(config.Log{Level: "warn", Format: "text"}, command.ErrOrStderr())
}

func addConfigFlag(command *cobra.Command, file *string) {
	command.Flags().StringVarP(file, "config", "c", "/etc/kubeferry/kubeferry.yaml", "the configuration `file`; the default is where the image expects it")
}
