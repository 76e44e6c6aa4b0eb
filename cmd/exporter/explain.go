package main

import (
	"errors"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/kubeferry/kubeferry/cmd/exporter/explain"
)

func newExplain() *cobra.Command {
	var file string
	options := explain.Options{Now: time.Now}
	command := &cobra.Command{
		Use:   "explain [OBJECT|-]",
		Short: "Show what becomes of an object, and why",
		Long: `explain shows what becomes of an object. For each pipeline it says whether it would send the object and where to, or which source, filter
or transform decides against it, and because of which values. Then it shows the record. It needs no cluster and no sink, and does not
touch the state directory.

It reads one or many objects from a file or from the standard input, as YAML or JSON.

The values of Secrets are shown as digests, and so is what a transform redacts.

It treats an object as ADDED, or as MODIFIED if --old names the previous version. It exits with 0 whether or not something would be sent.
With --exit-code, it exits with 1 if nothing would be sent. It exits with 2 if the configuration or an object cannot be read.`,
		Example: `  kubeferry explain --config kubeferry.yaml pod.yaml
  kubectl get deployment web -o yaml | kubeferry explain --config kubeferry.yaml
  kubectl get pods -A -o json | kubeferry explain -c kubeferry.yaml --pipeline audit -o json | jq '.pipelines[].answer'
  kubeferry explain -c kubeferry.yaml --old before.yaml after.yaml
  kubeferry explain -c kubeferry.yaml --type DELETED pod.yaml
  kubeferry explain -c kubeferry.yaml --resource example.com/v1/mice mouse.yaml`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			path := "-"
			if len(args) == 1 {
				path = args[0]
			} else if isTerminal(command.InOrStdin()) {
				return errors.New("name the file of an object, or send one: kubectl get pod NAME -o yaml | kubeferry explain --config FILE")
			}
			loaded, err := loadQuietly(file)
			if err != nil {
				return err
			}
			options.Config = loaded
			return explain.Run(command.Context(), options, path, command.InOrStdin(), command.OutOrStdout())
		},
	}
	addConfigFlag(command, &file)
	f := command.Flags()
	f.StringVar(&options.Old, "old", "", "the `file` of the previous version, or of several")
	f.StringVar(&options.Type, "type", "", "what happened: ADDED, MODIFIED or DELETED; default MODIFIED with --old, else ADDED")
	f.BoolVar(&options.Snapshot, "snapshot", false, "treat an ADDED as part of a snapshot")
	f.StringArrayVar(&options.Pipelines, "pipeline", nil, "explain the pipeline of this `name` only; may be repeated")
	f.StringVar(&options.Resource, "resource", "", "the `resource` of the objects, where it cannot be guessed from the kind: example.com/v1/mice")
	f.StringVarP(&options.Output, "output", "o", "text", "text, or json: one value for each object")
	f.BoolVar(&options.ExitCode, "exit-code", false, "exit 1 if nothing would be sent")
	completeConfigured(command, &file)
	return command
}

// isTerminal reports whether a stream is a terminal.
func isTerminal(w any) bool {
	file, ok := w.(*os.File)
	return ok && term.IsTerminal(int(file.Fd()))
}
