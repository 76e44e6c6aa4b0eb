package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kubeferry/kubeferry/cmd/exporter/app"
	"github.com/kubeferry/kubeferry/cmd/exporter/rbac"
)

func newRBAC() *cobra.Command {
	var file, kubeconfig, kubeContext string
	grant := rbac.Grant{}
	command := &cobra.Command{
		Use:   "rbac",
		Short: "Print the Roles and bindings that a configuration needs",
		Long: `rbac prints exactly the rights that a configuration needs, as YAML for kubectl. If namespaces.include has plain names, it prints a Role
for each of these namespaces. Else it prints a ClusterRole. Each has a binding to the ServiceAccount. It needs no cluster, unless resources
have short names such as deploy. It needs only those variables and files on which the rights depend.

A pipeline with enrich needs the resources that Events are about: those in enrichment.resources.`,
		Example: `  kubeferry rbac --config kubeferry.yaml | kubectl apply -f -
  kubeferry rbac --config kubeferry.yaml --namespace audit --service-account runner`,
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
			rules := rbac.Needed(loaded, append(rbac.Replicas(loaded, grant), rbac.Enrichment(loaded)...)...)
			fmt.Fprintf(command.OutOrStdout(), "# The rights that %s needs, made by `kubeferry rbac`.\n", file)
			return rbac.Write(command.OutOrStdout(), rules, grant)
		},
	}
	addConfigFlag(command, &file)
	addClusterFlags(command, &kubeconfig, &kubeContext)
	command.Flags().StringVar(&grant.Name, "name", "kubeferry", "`name` of the Roles, the ClusterRole and the bindings")
	command.Flags().StringVarP(&grant.Namespace, "namespace", "n", "kubeferry", "`namespace` of the ServiceAccount")
	command.Flags().StringVar(&grant.ServiceAccount, "service-account", "kubeferry", "`name` of the ServiceAccount that kubeferry runs as")
	return command
}
