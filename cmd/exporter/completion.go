package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/cmd/exporter/tail"
)

// completePipelines has the shell complete --pipeline with the pipelines of the configuration.
func completePipelines(command *cobra.Command, file *string) {
	complete(command, "pipeline", file, (*config.Config).PipelineNames)
}

// completeResources has the shell complete --resource with the resources of the configuration.
func completeResources(command *cobra.Command, file *string) {
	complete(command, "resource", file, (*config.Config).ResourceNames)
}

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
