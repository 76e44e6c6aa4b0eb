package main

import (
	"github.com/spf13/cobra"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/cmd/exporter/trace"
)

func newTrace() *cobra.Command {
	var file string
	var options trace.Options
	command := &cobra.Command{
		Use:   "trace RESOURCE NAMESPACE/NAME",
		Short: "Show what became of one object in the running kubeferry",
		Long: `trace shows why a change of an object did or did not arrive. It says what the API server has of the object now, how far the watch is, and
which version of the object it handed on last. Then it says for each pipeline whether the object is filtered out, waits and for what, is a
dead letter and why, or is delivered.

It talks to kubeferry through a socket in stateDir. So run it where kubeferry runs, with kubectl exec for example.

kubeferry remembers when it last delivered a record of an object, for 16,384 objects at most, and as long as it leads. Filters are evaluated
on the object as it is now.

Resources have the names that kubectl takes. Write NAME for an object without a namespace.`,
		Example: `  kubeferry trace -c kubeferry.yaml deploy shop/web
  kubeferry trace -c kubeferry.yaml nodes node-1
  kubeferry trace -c kubeferry.yaml widgets.example.com shop/a -o json | jq '.pipelines[] | {pipeline, state, why}'`,
		Args: cobra.ExactArgs(2),
		RunE: func(command *cobra.Command, args []string) error {
			loaded, err := loadWithState(file)
			if err != nil {
				return err
			}
			options.StateDir, options.Resource, options.Object = loaded.StateDir, args[0], args[1]
			return trace.Run(command.Context(), options, command.OutOrStdout())
		},
		ValidArgsFunction: func(command *cobra.Command, args []string, text string) ([]cobra.Completion, cobra.ShellCompDirective) {
			if len(args) > 0 {
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return configured(&file, (*config.Config).ResourceNames)(command, args, text)
		},
	}
	addConfigFlag(command, &file)
	command.Flags().StringVarP(&options.Output, "output", "o", "text", "text or json")
	return command
}
