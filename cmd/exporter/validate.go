package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kubeferry/kubeferry/config"
)

func newValidate() *cobra.Command {
	var file string
	command := &cobra.Command{
		Use:   "validate --config FILE",
		Short: "Check a configuration file and list every fault",
		Long: `validate reads a configuration file and lists everything that is wrong with it, each with its line and path.
It needs no cluster and no sink. It exits 0 if the file is fine, 2 if not. Warnings name choices that work but give
up a promise.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			loaded, warnings, err := config.Load(file, config.Options{Kinds: kinds()})
			for _, warning := range warnings {
				fmt.Fprintln(command.ErrOrStderr(), "warning:", warning)
			}
			if err != nil {
				return err
			}
			fmt.Fprintf(command.OutOrStdout(), "%s is valid: %d sources, %d pipelines, %d sinks\n",
				file, len(loaded.Sources), len(loaded.Pipelines), len(loaded.Sinks))
			return nil
		},
	}
	addConfigFlag(command, &file)
	return command
}

func addConfigFlag(command *cobra.Command, file *string) {
	command.Flags().StringVarP(file, "config", "c", "", "the configuration `file`")
	if err := command.MarkFlagRequired("config"); err != nil {
		panic(err) // the flag was defined a line above
	}
}
