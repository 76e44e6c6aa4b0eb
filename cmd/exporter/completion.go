package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/cmd/exporter/tail"
)

// completionTimeout bounds how long a shell waits for the API server.
const completionTimeout = 3 * time.Second

// completeServed has the shell complete arguments with the resources of the cluster.
func completeServed(kubeconfig, kubeContext *string) cobra.CompletionFunc {
	return func(command *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
		cluster, err := clusterConfig(*kubeconfig, *kubeContext)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		ctx, cancel := context.WithTimeout(command.Context(), completionTimeout)
		defer cancel()
		return tail.Names(ctx, cluster), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeConfigured has the shell complete --pipeline and --resource with what the configuration has.
func completeConfigured(command *cobra.Command, file *string) {
	for flag, values := range map[string]func(*config.Config) []string{
		"pipeline": (*config.Config).PipelineNames, "resource": (*config.Config).ResourceNames,
	} {
		if command.Flags().Lookup(flag) != nil {
			_ = command.RegisterFlagCompletionFunc(flag, configured(file, values)) // the command has the flag
		}
	}
}

// configured has the shell complete with values of the configuration.
func configured(file *string, values func(*config.Config) []string) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
		loaded, _, err := config.Load(*file, config.Options{Kinds: kinds(), AllowUnset: true})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return values(loaded), cobra.ShellCompDirectiveNoFileComp
	}
}
