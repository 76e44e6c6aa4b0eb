package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/kubeferry/kubeferry/internal/checkpoint"
	"github.com/kubeferry/kubeferry/pipeline"
)

// logsPath deletes, with DELETE, the log of the pipeline that the request names, and returns how many changes were in it.
const logsPath = "/logs"

// logs are those of a running kubeferry. What is deleted there is deleted at the standbys too.
type logs struct {
	committer *checkpoint.Committer
	pipelines []*pipeline.Pipeline // that run
}

func (l *logs) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name := r.URL.Query().Get("pipeline")
	if slices.ContainsFunc(l.pipelines, func(p *pipeline.Pipeline) bool { return p.Name() == name }) {
		http.Error(w, fmt.Sprintf("pipeline %q runs: restart kubeferry without it first", name), http.StatusConflict)
		return
	}
	size, err := l.committer.DropLog(r.Context(), name)
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(readTimeout)) // a commit may take long
	switch {
	case errors.Is(err, checkpoint.ErrNoLog):
		http.Error(w, fmt.Sprintf("%v %q", err, name), http.StatusNotFound)
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		fmt.Fprint(w, size.Entries)
	}
}

// DropLog deletes the log of a pipeline that is not configured, at the kubeferry that runs on a state directory, or in the file, and returns
// how many changes were in it.
func DropLog(ctx context.Context, stateDir, name string, report func(message string, err error)) (entries uint64, err error) {
	err = withState(ctx, stateDir, report, func(c *socketClient) error {
		answer, err := c.request(ctx, http.MethodDelete, logsPath+"?pipeline="+url.QueryEscape(name), nil)
		if err == nil {
			entries, err = strconv.ParseUint(string(answer), 10, 64)
		}
		return err
	}, func(s *checkpoint.Store) error {
		log, exists := s.Logs()[name]
		if !exists {
			return fmt.Errorf("%w %q", checkpoint.ErrNoLog, name)
		}
		entries = log.Entries
		return s.Commit(&checkpoint.Commit{DropLogs: []string{name}})
	})
	return entries, err
}
