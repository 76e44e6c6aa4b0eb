package main

import (
	"fmt"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/kubeferry/kubeferry/cmd/exporter/app"
	"github.com/kubeferry/kubeferry/cmd/exporter/rbac"
)

func newRBAC() *cobra.Command {
	var file, kubeconfig, kubeContext string
	var involved []string
	grant := rbac.Grant{}
	command := &cobra.Command{
		Use:   "rbac --config FILE",
		Short: "Print the Roles and bindings that a configuration needs",
		Long: `rbac prints the rights that a run of a configuration needs, and no other, as YAML for kubectl: a Role in each
namespace where namespaces.include holds plain names, else a ClusterRole, each with a binding to the ServiceAccount.
It needs no cluster, unless resources have names such as deploy, and no variables and files but those that the rights depend on.

A pipeline with enrich needs the resources that Events are about. By default these are the kinds that Kubernetes' own
controllers write Events about; --involved names others. Who may list Secrets may read them: leave them out.`,
		Example: `  kubeferry rbac --config kubeferry.yaml | kubectl apply -f -
  kubeferry rbac --config kubeferry.yaml --namespace audit --service-account runner
  kubeferry rbac --config kubeferry.yaml --involved pods,deployments.apps`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			loaded, err := loadPartly(file, "the rights may depend on it")
			if err != nil {
				return err
			}
			if len(loaded.Unresolved()) > 0 {
				cluster, err := clusterConfig(kubeconfig, kubeContext)
				if err != nil {
					return err
				}
				if err := app.Resolve(command.Context(), loaded, cluster); err != nil {
					return err
				}
			}
			about := rbac.Involved()
			if command.Flags().Changed("involved") {
				about = nil
				for _, name := range involved {
					about = append(about, schema.ParseGroupResource(name))
				}
			}
			rules := rbac.Needed(loaded, about, rbac.Replicas(loaded, grant)...)
			fmt.Fprintf(command.OutOrStdout(), "# The rights that %s needs, made by `kubeferry rbac`.\n", file)
			return rbac.Write(command.OutOrStdout(), rules, grant)
		},
	}
	addConfigFlag(command, &file)
	addClusterFlags(command, &kubeconfig, &kubeContext)
	command.Flags().StringVar(&grant.Name, "name", "kubeferry", "`name` of the Roles, the ClusterRole and the bindings")
	command.Flags().StringVarP(&grant.Namespace, "namespace", "n", "kubeferry", "`namespace` of the ServiceAccount")
	command.Flags().StringVar(&grant.ServiceAccount, "service-account", "kubeferry", "`name` of the ServiceAccount that kubeferry runs as")
	command.Flags().StringSliceVar(&involved, "involved", nil, "`resources` that Events are about, as kubectl names them: pods, deployments.apps")
	return command
}
