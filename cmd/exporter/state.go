package main

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/kubeferry/kubeferry/cmd/exporter/app"
	"github.com/kubeferry/kubeferry/cmd/exporter/config"
	"github.com/kubeferry/kubeferry/cmd/exporter/replay"
)

func newState() *cobra.Command {
	command := &cobra.Command{
		Use:   "state",
		Short: "Look at a state directory, and change it",
		Long: `state looks at the stateDir of a configuration and changes it, whether or not kubeferry runs. If it runs, show and drop talk to it through
a socket in stateDir. So run them where kubeferry runs, with kubectl exec for example. With replicas, run them where the leader runs.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("unknown command %q; there are show, drop and recover", args[0])
			}
			return nil
		},
		RunE: func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	command.AddCommand(newStateShow(), newStateDrop(), newStateRecover())
	return command
}

func newStateShow() *cobra.Command {
	var file string
	command := &cobra.Command{
		Use:   "show",
		Short: "Show which cluster the state belongs to, and what waits in it",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			loaded, err := loadWithState(file)
			if err != nil {
				return err
			}
			var found app.StateSummary
			err = app.WithStateDir(command.Context(), loaded.StateDir, reportTo(command), func(state app.StateDir) (err error) {
				found, err = state.Summary(command.Context())
				return err
			})
			if err != nil {
				return &app.FailureError{Err: err}
			}
			last := "did not end with a last commit"
			switch {
			case found.Running:
				last = "goes on"
			case found.Clean:
				last = "ended with a last commit"
			}
			out := tabwriter.NewWriter(command.OutOrStdout(), 0, 0, 2, ' ', 0)
			fmt.Fprintf(out, "cluster uid:\t%s\noffset:\t%d\nlast run:\t%s\n", found.ClusterUID, found.Offset, last)
			fmt.Fprintf(out, "dead letters:\t%d of %d bytes\n\n", found.DeadLetters.Entries, found.DeadLetters.Bytes)
			fmt.Fprintln(out, "PIPELINE\tWAITING\tBYTES")
			for _, name := range slices.Sorted(maps.Keys(found.Logs)) {
				fmt.Fprintf(out, "%s\t%d\t%d\n", name, found.Logs[name].Entries, found.Logs[name].Bytes)
			}
			return out.Flush()
		},
	}
	addConfigFlag(command, &file)
	return command
}

func newStateDrop() *cobra.Command {
	var file, name string
	command := &cobra.Command{
		Use:   "drop --pipeline NAME",
		Short: "Delete the log of a pipeline that is not configured any more",
		Long: `drop deletes what waits for a pipeline that the configuration does not have any more. These changes are then never delivered. It refuses
to delete what waits for a configured pipeline.

With replicas, run it where the leader runs: the others copy its state. If all replicas are stopped, run it on the directory of each.`,
		Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			loaded, err := loadWithState(file)
			if err != nil {
				return err
			}
			if slices.Contains(loaded.PipelineNames(), name) {
				return fmt.Errorf("pipeline %q is configured: remove it from %s first", name, file)
			}
			var entries uint64
			err = app.WithStateDir(command.Context(), loaded.StateDir, reportTo(command), func(state app.StateDir) (err error) {
				entries, err = state.DropLog(command.Context(), name)
				return err
			})
			if err != nil {
				return &app.FailureError{Err: err}
			}
			_, err = fmt.Fprintf(command.OutOrStdout(), "dropped %d undelivered changes of pipeline %q\n", entries, name)
			return err
		},
	}
	addConfigFlag(command, &file)
	command.Flags().StringVar(&name, "pipeline", "", "the `name` of the removed pipeline")
	if err := command.MarkFlagRequired("pipeline"); err != nil {
		panic(err) // the flag was defined a line above
	}
	return command
}

func newStateRecover() *cobra.Command {
	var file string
	command := &cobra.Command{
		Use:   "recover ASIDE",
		Short: "Write what can be read of a state file that was set aside",
		Long: `recover reads a state file that was set aside. It writes the changes in it that were not delivered to the standard output, as dead letters.
Keep them in a file, and send them with "kubeferry replay". The log names the state file.

They have the ids and the order that they had before. What kubeferry has sent since then is newer, so a consumer must go by "sequence". If
some entries are damaged, it names them, writes the rest, and exits with 1.`,
		Example: `  kubeferry state recover --config kubeferry.yaml kubeferry.db.set-aside-20261122T064500 > letters.jsonl
  kubeferry replay --config kubeferry.yaml letters.jsonl`,
		Args: cobra.ExactArgs(1),
		RunE: func(command *cobra.Command, args []string) error {
			loaded, err := loadQuietly(file)
			if err != nil {
				return err
			}
			return replay.Recover(loaded, args[0], command.OutOrStdout(), command.ErrOrStderr())
		},
	}
	addConfigFlag(command, &file)
	return command
}

func loadQuietly(file string) (*config.Config, error) {
	loaded, _, err := config.Load(file, config.Options{Kinds: kinds()})
	return loaded, err
}

// loadWithState loads a configuration whose state directory the command needs.
func loadWithState(file string) (*config.Config, error) {
	loaded, err := loadQuietly(file)
	if err != nil {
		return nil, err
	}
	if loaded.StateDir == "" {
		return nil, fmt.Errorf("%s has no stateDir; the command needs what is in it", file)
	}
	if _, err := os.Stat(loaded.StateDir); errors.Is(err, fs.ErrNotExist) {
		return nil, &app.FailureError{Err: err}
	}
	return loaded, nil
}

func reportTo(command *cobra.Command) func(message string, err error) {
	return func(message string, err error) { fmt.Fprintln(command.ErrOrStderr(), message, err) }
}
