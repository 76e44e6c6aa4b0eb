package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/cmd/exporter/tail"
)

func newTail() *cobra.Command {
	var file, kubeconfig, kubeContext string
	var all bool
	options := tail.Options{Version: versionName()}
	command := &cobra.Command{
		Use:   "tail [RESOURCE…]",
		Short: "Show the changes of a cluster as they happen",
		Long: `tail shows what changes in a cluster. Each line has one change, with the fields that are different and who changed them. It needs a
kubeconfig and no configuration, and it only reads. Ctrl-C ends it.

Resources have the names that kubectl takes: pods, deploy, deployments.apps, deployments.v1.apps, apps/v1/deployments. If you name none,
it shows every resource that you may list and watch, except Events, Leases, Endpoints and EndpointSlices, because these change most.

As kubectl does, it shows the namespace of the kubeconfig's context. In a Pod, it shows the namespace of the Pod. -n names another one,
and -A stands for all. Objects without a namespace, such as Nodes, are shown if you name their resource, or with -A.

With --config it shows what a pipeline of that file would send, after its sources, filters and transforms. --output json and yaml then
show the whole record, and where it would go. Nothing is sent, and no state directory is touched.

The values of Secrets are shown as digests. If the previous version of an object is not known, because a filter left it out for example,
a MODIFIED shows the object instead of the difference.`,
		Example: `  kubeferry tail
  kubeferry tail deploy,pods -n shop
  kubeferry tail -A
  kubeferry tail pods -l app=web --types DELETED
  kubeferry tail deployments --filter 'object.spec.replicas > 3' --snapshot
  kubeferry tail v1/events --field-selector type=Warning --for 10m
  kubeferry tail widgets.example.com -o json
  kubeferry tail --config kubeferry.yaml --pipeline audit -o yaml`,
		RunE: func(command *cobra.Command, args []string) error {
			options.Resources, options.Out, options.Err = args, command.OutOrStdout(), command.ErrOrStderr()
			switch {
			case file != "" && len(args) > 0:
				return errors.New("name no resources together with --config: the file names them")
			case file == "" && options.Pipeline != "":
				return errors.New("--pipeline needs --config")
			case options.For < 0:
				return errors.New("--for must not be negative")
			case file != "":
				var err error
				if options.Config, err = loadPartly(file, "what the pipeline sends may depend on it"); err != nil {
					return err
				}
			}
			cluster, err := clusterConfig(kubeconfig, kubeContext)
			if err != nil {
				return err
			}
			if file == "" && !all && len(options.Namespaces) == 0 {
				namespace, _, err := clientConfig(kubeconfig, kubeContext).Namespace()
				if err != nil {
					return err
				}
				options.Namespaces = []string{namespace}
			}
			return tail.Run(command.Context(), options, cluster)
		},
		ValidArgsFunction: completeServed(&kubeconfig, &kubeContext),
	}
	f := command.Flags()
	f.StringSliceVarP(&options.Namespaces, "namespace", "n", nil, "the `namespaces` to show: names or globs, joined by commas; default: that of the context")
	f.BoolVarP(&all, "all-namespaces", "A", false, "show all namespaces")
	f.StringVarP(&options.Selector, "selector", "l", "", "show objects with these `labels` only: app=web,tier!=cache")
	f.StringVar(&options.FieldSelector, "field-selector", "", "show objects with these `fields` only: metadata.name=web")
	f.StringVar(&options.Filter, "filter", "", "show only changes for which this CEL `expression` is true or fails, as with expr in a configuration")
	f.StringSliceVar(&options.Types, "types", nil, "show these `types` of changes only: ADDED, MODIFIED, DELETED")
	f.BoolVar(&options.Snapshot, "snapshot", false, "first show what exists")
	f.DurationVar(&options.For, "for", 0, "end after watching for this `time`, such as 10m")
	f.StringVarP(&options.Output, "output", "o", "table", "table, json (a line for each change) or yaml (a document for each)")
	f.StringVarP(&file, "config", "c", "", "show what a pipeline of this configuration `file` would send")
	f.StringVar(&options.Pipeline, "pipeline", "", "the `name` of that pipeline, where there are several")
	addClusterFlags(command, &kubeconfig, &kubeContext)
	completeConfigured(command, &file)
	command.MarkFlagsMutuallyExclusive("namespace", "all-namespaces")
	for _, flag := range []string{"namespace", "all-namespaces", "selector", "field-selector", "filter", "types"} {
		command.MarkFlagsMutuallyExclusive("config", flag)
	}
	return command
}

// loadPartly loads a configuration whose variables and files may be missing where only sinks, replicas and the program itself
// depend on them; risk ends the error for others.
func loadPartly(file, risk string) (*config.Config, error) {
	loaded, warnings, err := config.Load(file, config.Options{Kinds: kinds(), AllowUnset: true})
	if err != nil {
		return nil, err
	}
	for _, warning := range warnings {
		section, _, _ := strings.Cut(warning.Path, ".")
		section, _, _ = strings.Cut(section, "[")
		switch section {
		case "cluster", "sinks", "replication", "redaction", "server", "log", "shutdown", "deadLetters", "previous":
		default:
			if warning.Unset {
				return nil, fmt.Errorf("%v; %s", warning, risk)
			}
		}
	}
	return loaded, nil
}
