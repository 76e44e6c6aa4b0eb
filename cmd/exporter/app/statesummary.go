package app

import (
	"context"
	"encoding/json"
	"net/http"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/internal/delta"
)

// statePath returns a [StateSummary].
const statePath = "/state"

// StateSummary is what `kubeferry state show` prints of a state directory.
type StateSummary struct {
	ClusterUID string
	// Offset is what is added to resource versions to make sequences.
	Offset uint64
	// Running is set if kubeferry runs on the directory. Else Clean says whether its last run ended with a last commit.
	Running, Clean bool
	DeadLetters    delta.LogSize
	// Logs are what waits for each pipeline, by name.
	Logs map[string]delta.LogSize
}

func summarize(info checkpoint.Info, logs map[string]delta.LogSize) StateSummary {
	return StateSummary{ClusterUID: info.ClusterUID, Offset: info.Offset, Clean: info.Clean, Logs: logs}
}

// summary serves the state of the kubeferry that runs, as of its last commit.
type summary struct {
	committer *checkpoint.Committer
	dead      *checkpoint.DeadLetters
}

func (s *summary) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	found := summarize(s.committer.State())
	dead := s.dead.Status()
	found.Running, found.DeadLetters = true, delta.LogSize{Entries: dead.Entries, Bytes: dead.Bytes}
	_ = json.NewEncoder(w).Encode(found) // the client went away
}

// SummarizeState returns what is in a state directory: from the kubeferry that runs on it, or from the file.
func SummarizeState(ctx context.Context, stateDir string, report func(message string, err error)) (found StateSummary, err error) {
	err = withState(ctx, stateDir, report, func(c *socketClient) error {
		answer, err := c.request(ctx, http.MethodGet, statePath, nil)
		if err == nil {
			err = json.Unmarshal(answer, &found)
		}
		return err
	}, func(s *checkpoint.Store) error {
		found = summarize(s.Info(), s.Logs())
		found.DeadLetters = s.DeadLetters()
		return nil
	})
	return found, err
}
