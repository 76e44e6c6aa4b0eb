package line

import (
	"bufio"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
)

const token = "a-token-of-some-length"

func TestSuite(t *testing.T) {
	sinktest.Run(t, sinktest.Harness{Kind: Kind(), New: newPeer})
}

// server is the real thing, in small.
type server struct {
	t        *testing.T
	addr     string
	listener net.Listener
	done     sync.WaitGroup

	mu      sync.Mutex // guards what follows
	conns   map[net.Conn]bool
	stored  []sinktest.Stored
	login   string            // the answer to a token
	answer  string            // the answer to a record, if answers has none
	answers map[string]string // by the id in the record
	hung    chan struct{}     // closed unless it hangs
}

func newPeer(t *testing.T) *sinktest.Peer {
	s := &server{t: t, addr: "127.0.0.1:0", conns: map[net.Conn]bool{}, answers: map[string]string{}, hung: make(chan struct{})}
	close(s.hung)
	s.set(func() { s.login, s.answer = "ok", "ok" })
	s.listen()
	tokenFile := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(tokenFile, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	mend := func() {
		s.set(func() {
			s.login, s.answer = "ok", "ok"
			for id, answer := range s.answers {
				if answer == "later" {
					delete(s.answers, id)
				}
			}
			select {
			case <-s.hung:
			default:
				close(s.hung)
			}
		})
		if s.listener == nil {
			s.listen()
		}
	}
	t.Cleanup(func() {
		mend()
		s.leave()
		s.done.Wait()
	})
	return &sinktest.Peer{
		Config: func() sinks.Config {
			c := NewConfig()
			c.Address, c.TokenFile = s.addr, tokenFile
			return c
		},
		Stored:     func() []sinktest.Stored { s.mu.Lock(); defer s.mu.Unlock(); return slices.Clone(s.stored) },
		Fail:       func() { s.set(func() { s.answer = "later" }) },
		FailRecord: func(r *sinks.Record) { s.set(func() { s.answers[r.DedupID] = "later" }) },
		Poison:     func(r *sinks.Record) { s.set(func() { s.answers[r.DedupID] = "never" }) },
		Hang:       func() { s.set(func() { s.hung = make(chan struct{}) }) },
		Leave:      s.leave,
		Deny:       func() { s.set(func() { s.login = "denied" }) },
		Mend:       mend,
		Secrets:    []string{token},
		Cannot: map[sinktest.Ability]string{
			sinktest.Key:        "a line has the id and the body only",
			sinktest.Headers:    "a line has the id and the body only",
			sinktest.Attributes: "the body is the event in structured form",
		},
	}
}

func (s *server) set(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *server) listen() {
	listener, err := net.Listen("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	s.listener, s.addr = listener, listener.Addr().String()
	s.done.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			s.set(func() { s.conns[conn] = true })
			s.done.Go(func() { s.serve(conn) })
		}
	})
}

func (s *server) leave() {
	if s.listener != nil {
		_ = s.listener.Close()
		s.listener = nil
	}
	s.set(func() {
		for conn := range s.conns {
			_ = conn.Close()
		}
	})
}

func (s *server) serve(conn net.Conn) {
	defer conn.Close()
	defer s.set(func() { delete(s.conns, conn) })
	lines := bufio.NewReader(conn)
	for first := true; ; first = false {
		line, err := lines.ReadString('\n')
		if err != nil {
			return
		}
		s.mu.Lock()
		hung := s.hung
		s.mu.Unlock()
		<-hung
		answer := s.take(strings.TrimSuffix(line, "\n"), first)
		if _, err := conn.Write([]byte(answer + "\n")); err != nil {
			return
		}
	}
}

func (s *server) take(line string, first bool) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	id, body, _ := strings.Cut(line, " ")
	switch {
	case first && line == token:
		return s.login
	case first:
		return "denied"
	case s.answers[id] != "":
		return s.answers[id]
	case s.answer == "ok":
		s.stored = append(s.stored, sinktest.Stored{DedupID: id, Body: []byte(body)})
	}
	return s.answer
}
