package main

import (
	"github.com/spf13/cobra"

	"github.com/kubeferry/kubeferry/internal/config"
)

// completePipelines has the shell complete --pipeline with the pipelines of the configuration.
func completePipelines(command *cobra.Command, file *string) {
	complete(command, "pipeline", file, (*config.Config).PipelineNames)
}

// completeResources has the shell complete --resource with the resources of the configuration.
func completeResources(command *cobra.Command, file *string) {
	complete(command, "resource", file, (*config.Config).ResourceNames)
}

func complete(command *cobra.Command, flag string, file *string, values func(*config.Config) []string) {
	err := command.RegisterFlagCompletionFunc(flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		loaded, _, err := config.Load(*file, config.Options{Kinds: kinds(), AllowUnset: true})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return values(loaded), cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // the command has the flag
	}
}
