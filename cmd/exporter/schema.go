package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/kubeferry/kubeferry/cmd/exporter/app"
	"github.com/kubeferry/kubeferry/cmd/exporter/config"
)

func newSchema() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of the configuration file",
		Long: `schema prints the JSON Schema of the configuration file. Editors complete and check with it: save it beside the
file, and write "# yaml-language-server: $schema=kubeferry.schema.json" as the file's first line.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			schema, err := config.Schema(kinds())
			if err != nil {
				return &app.FailureError{Err: err}
			}
			_, err = fmt.Fprintln(command.OutOrStdout(), string(schema))
			return err
		},
	}
}
