// Package admin serves what operators look at: /metrics, /healthz, /readyz, /status and a page of it at /.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Probes answer for the program. They must return quickly, whatever is blocked elsewhere.
type Probes struct {
	// Healthy returns an error if the process makes no progress and should be restarted.
	Healthy func() error
	// Ready returns an error until every watch that can be opened has read its state, and while the state directory cannot be written.
	Ready func() error
	// Notes are more lines for the body of /readyz; it may be nil.
	Notes func() []string
	// Status returns what /status shows as JSON. It includes the rates of the last minutes if the parameter is set.
	Status func(rates bool) any
}

// Server is the HTTP server.
type Server struct {
	listener net.Listener
	server   *http.Server
}

// Listen opens the address, so that a taken port is an error at start.
func Listen(ctx context.Context, address string, metrics prometheus.Gatherer, probes Probes, logger *slog.Logger) (*Server, error) {
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("listen for metrics and probes (server.listen): %w", err)
	}
	mux := http.NewServeMux()
	var scraping, showing sync.Mutex // who requests /status without end keeps no scrape waiting
	mux.Handle("GET /metrics", inTurn(&scraping, promhttp.HandlerFor(metrics, promhttp.HandlerOpts{})))
	mux.HandleFunc("GET /healthz", probe(probes.Healthy, nil))
	mux.HandleFunc("GET /livez", probe(probes.Healthy, nil)) // as the API server calls it
	mux.HandleFunc("GET /readyz", probe(probes.Ready, probes.Notes))
	mux.Handle("GET /status", inTurn(&showing, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		_ = encoder.Encode(probes.Status(r.URL.Query().Has("rates"))) // the client went away
	})))
	mux.Handle("GET /{$}", servePage())
	return &Server{listener: listener, server: NewHTTPServer(mux, logger)}, nil
}

// answerTimeout bounds how long a request waits for its turn.
const answerTimeout = 20 * time.Second

// inTurn makes one answer of a kind at a time: they go through all that waits, and any Pod may send requests without end. Answers are sent
// from a buffer, so that a slow client keeps no other waiting.
func inTurn(answering *sync.Mutex, handler http.Handler) http.Handler {
	return http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answering.Lock()
		defer answering.Unlock()
		if r.Context().Err() == nil {
			handler.ServeHTTP(w, r)
		}
	}), answerTimeout, "too many requests wait\n")
}

// NewHTTPServer returns a server with time-outs and a bound on its connections.
func NewHTTPServer(handler http.Handler, logger *slog.Logger) *http.Server {
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       90 * time.Second, // more than a usual scrape interval
		MaxHeaderBytes:    16 << 10,
		ConnState:         new(connections).changed,
		ErrorLog:          slog.NewLogLogger(logger.Handler(), slog.LevelDebug),
	}
}

func probe(check func() error, notes func() []string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		} else {
			fmt.Fprintln(w, "ok")
		}
		if notes == nil {
			return
		}
		for _, line := range notes() {
			fmt.Fprintln(w, line)
		}
	}
}

// Address is where the server listens.
func (s *Server) Address() string { return s.listener.Addr().String() }

// Serve answers until Close.
func (s *Server) Serve() error {
	if err := s.server.Serve(s.listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// Close ends Serve, waiting for requests under way until ctx ends.
func (s *Server) Close(ctx context.Context) error { return s.server.Shutdown(ctx) }
