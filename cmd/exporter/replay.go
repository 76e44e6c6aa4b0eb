package main

import (
	"errors"

	"github.com/spf13/cobra"

	"github.com/kubeferry/kubeferry/cmd/exporter/app"
	"github.com/kubeferry/kubeferry/cmd/exporter/replay"
)

func newReplay() *cobra.Command {
	var file, only string
	var discard bool
	command := &cobra.Command{
		Use:   "replay [LETTERS.jsonl|-]",
		Short: "Send dead letters again",
		Long: `replay sends dead letters again, each through the sink of the pipeline that it came from, in order per object. The records keep their ids.
They are marked as "replayed", and have new ids for the transport, because the transport would drop them as repetitions otherwise.

By default it sends the dead letters in stateDir, whether or not kubeferry runs. What is delivered is removed, and the rest stays for the
next time. Some dead letters can never be sent: those without a body, because the record could not be made, and those of a pipeline that
the configuration does not have. --discard prints these and removes them.

You can also name a file with dead letters, such as one that a file sink wrote, or send them to the standard input, which - stands for. The
file stays as it is. What could not be delivered is printed, for the next time.

It exits with 1 if something could not be delivered.`,
		Example: `  kubeferry replay --config kubeferry.yaml
  kubeferry replay --config kubeferry.yaml letters.jsonl > left.jsonl
  kubectl exec -i POD -- /kubeferry replay - < letters.jsonl > left.jsonl`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			loaded, err := loadQuietly(file)
			if err != nil {
				return err
			}
			letters := ""
			switch {
			case len(args) == 1 && discard:
				return errors.New("--discard is for the letters in stateDir: a file is not changed")
			case len(args) == 1:
				letters = args[0]
			case loaded.StateDir == "":
				return errors.New("there is no stateDir to find dead letters in: name the file, or - for the standard input")
			}
			return replay.Run(command.Context(), replay.Options{
				Config: loaded, Path: letters, Input: command.InOrStdin(), Pipeline: only, Discard: discard, UserAgent: app.UserAgent(versionName()),
				Letters: command.OutOrStdout(), Summary: command.ErrOrStderr(),
				Logger: warnings(command),
			})
		},
	}
	addConfigFlag(command, &file)
	command.Flags().StringVar(&only, "pipeline", "", "replay the letters of this pipeline only; the others stay")
	command.Flags().BoolVar(&discard, "discard", false, "print and remove the letters in stateDir that no replay can send")
	completeConfigured(command, &file)
	return command
}
