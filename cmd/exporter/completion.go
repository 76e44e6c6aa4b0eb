package main

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/kubeferry/kubeferry/internal/config"
	"github.com/kubeferry/kubeferry/internal/delta"
)

// completePipelines has the shell complete --pipeline with the pipelines of the configuration.
func completePipelines(command *cobra.Command, file *string) {
	complete(command, "pipeline", file, func(loaded *config.Config) (names []string) {
		for _, p := range loaded.Pipelines {
			names = append(names, p.Name)
		}
		return names
	})
}

// completeResources has the shell complete --resource with the resources of the configuration.
func completeResources(command *cobra.Command, file *string) {
	complete(command, "resource", file, func(loaded *config.Config) (names []string) {
		for _, s := range loaded.Sources {
			for _, r := range s.Resources {
				names = append(names, delta.ResourceName(r))
			}
		}
		slices.Sort(names)
		return slices.Compact(names)
	})
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
