package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// version is set by the linker: -X main.version=v1.2.3.
var version string

const platform = runtime.GOOS + "/" + runtime.GOARCH

func newVersion() *cobra.Command {
	var output string
	command := &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			switch output {
			case "json":
				encoder := json.NewEncoder(command.OutOrStdout())
				encoder.SetIndent("", "  ")
				return encoder.Encode(map[string]string{"version": versionName(), "goVersion": runtime.Version(), "platform": platform})
			case "text":
				_, err := fmt.Fprintf(command.OutOrStdout(), "kubeferry %s (%s, %s)\n", versionName(), runtime.Version(), platform)
				return err
			default:
				return fmt.Errorf("--output: %q is neither text nor json", output)
			}
		},
	}
	command.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return command
}

// versionName is the linker's, else the module's, else the commit's.
func versionName() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	if info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			return "devel-" + setting.Value[:min(12, len(setting.Value))]
		}
	}
	return "devel"
}
