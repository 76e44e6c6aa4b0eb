package e2e_test

import (
	"crypto/sha256"
	"crypto/tls"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/kubeferry/kubeferry/test/webhooktest"
)

var leases = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}

// Endpoint returns where the Lease says that the leader serves standbys.
func (r *replicas) Endpoint() (address, certificate string) {
	r.tb.Helper()
	client := objectsIn(r.tb, r.admin, leases, r.namespace).client
	eventually(r.tb, wide, "the leader is in the Lease", func() error {
		lease, err := client.Get(r.tb.Context(), "kubeferry", metav1.GetOptions{})
		if err != nil {
			return err
		}
		address, certificate = lease.GetAnnotations()["kubeferry.dev/address"], lease.GetAnnotations()["kubeferry.dev/certificate-sha256"]
		if address == "" {
			return errors.New("no address")
		}
		return nil
	})
	return address, certificate
}

// WaitRenewed returns when the Lease says what its leader finds of the standbys now. There must be changes: each renewal names a newer
// commit then, and what the second one names was looked up behind the call.
func (r *replicas) WaitRenewed() {
	r.tb.Helper()
	client, last, newer := objectsIn(r.tb, r.admin, leases, r.namespace).client, "", -1
	eventually(r.tb, wide, "the Lease names newer commits", func() error {
		lease, err := client.Get(r.tb.Context(), "kubeferry", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if named := lease.GetAnnotations()["kubeferry.dev/commit"]; named != last {
			last, newer = named, newer+1
		}
		if newer < 2 {
			return fmt.Errorf("it names %s", last)
		}
		return nil
	})
}

// helloTo connects to a leader as a standby with a token does, and returns the answer.
func helloTo(tb testing.TB, address, token string) (conn net.Conn, answer string) {
	tb.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{InsecureSkipVerify: true}) //nolint:gosec // as a stranger does
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	err = errors.Join(conn.SetDeadline(time.Now().Add(wide)), sendHello(conn, map[string]any{"protocols": []int{1}, "token": token}))
	if err != nil {
		tb.Fatal(err)
	}
	answer, err = receiveHello(conn)
	if err != nil {
		tb.Fatal(err)
	}
	return conn, answer
}

func sendHello(conn net.Conn, content any) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	_, err = conn.Write(append(binary.BigEndian.AppendUint32([]byte{'H'}, uint32(len(text))), text...))
	return err
}

func receiveHello(conn net.Conn) (string, error) {
	head := make([]byte, 5)
	if _, err := io.ReadFull(conn, head); err != nil {
		return "", err
	}
	text := make([]byte, binary.BigEndian.Uint32(head[1:]))
	_, err := io.ReadFull(conn, text)
	return string(text), err
}

// TestExtendedStrangersAtTheStandbysPort connects to a leader's port as whoever can reach it may: without a token, with one of the same
// ServiceAccount that was not made for this leader, and with one of another ServiceAccount that was.
func TestExtendedStrangersAtTheStandbysPort(t *testing.T) {
	beside(t)
	namespace := newNamespace(t, "strangers")
	hook := webhooktest.Start(t)
	r := newReplicas(t, namespace, replicasConfig(namespace, hook.URL()))
	r.Start()
	leader, _ := r.Leader()
	address, certificate := r.Endpoint()
	if _, err := plane(t).ServiceAccountConfig(t.Context(), namespace, "another"); err != nil {
		t.Fatal(err)
	}
	audience := "kubeferry:" + certificate
	for name, test := range map[string]struct {
		token   string
		welcome bool
	}{
		"no token":                  {"", false},
		"not a token":               {"token", false},
		"for the API server":        {tokenFor(t, namespace, "exporter", ""), false},
		"for another leader":        {tokenFor(t, namespace, "exporter", audience+"0"), false},
		"of another ServiceAccount": {tokenFor(t, namespace, "another", audience), false},
		"of a replica":              {tokenFor(t, namespace, "exporter", audience), true},
	} {
		conn, answer := helloTo(t, address, test.token)
		if welcome := !strings.Contains(answer, "refused"); welcome != test.welcome {
			t.Errorf("%s: the answer is %s", name, answer)
		}
		if more, err := io.Copy(io.Discard, io.LimitReader(conn, 1)); !test.welcome && more > 0 {
			t.Errorf("%s: something follows the refusal, %v", name, err)
		}
	}
	if lines := leader.Logged("a connection to the port for standbys is refused"); len(lines) != 1 {
		t.Errorf("%d lines in the log: %v", len(lines), lines)
	}

	kept := tokenFor(t, namespace, "exporter", audience) // which this leader would take
	leader.Kill()
	r.Remove(leader)
	r.StartIn(leader.dir)
	r.Leader()
	next, other := r.Endpoint()
	if _, answer := helloTo(t, next, kept); other == certificate || !strings.Contains(answer, "refused") {
		t.Errorf("the answer of the next leader to a token that was for the one before is %s", answer)
	}
}

// tokenFor requests a token of a ServiceAccount for an audience; empty for the API server's.
func tokenFor(tb testing.TB, namespace, account, audience string) string {
	tb.Helper()
	client, err := kubernetes.NewForConfig(plane(tb).Config())
	if err != nil {
		tb.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{}
	if audience != "" {
		request.Spec.Audiences = []string{audience}
	}
	answer, err := client.CoreV1().ServiceAccounts(namespace).CreateToken(tb.Context(), account, request, metav1.CreateOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	return answer.Status.Token
}

// TestExtendedIdleConnectionsAtTheStandbysPort holds a thousand connections open that say nothing: they take the leader a bounded number of
// files, a standby gets through, and one line in the log says so.
func TestExtendedIdleConnectionsAtTheStandbysPort(t *testing.T) {
	beside(t)
	namespace := newNamespace(t, "idle")
	hook := webhooktest.Start(t)
	r := newReplicas(t, namespace, replicasConfig(namespace, hook.URL()))
	r.Start()
	leader, _ := r.Leader()
	address, _ := r.Endpoint()
	before := leader.Metrics().sum("process_open_fds")
	for range 1000 {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
	}
	if after := leader.Metrics().sum("process_open_fds"); after > before+50 {
		t.Errorf("%v files are open, %v before", after, before)
	}
	r.Start()
	r.WaitInSync()
	if lines := leader.Logged("a connection to the port for standbys is refused"); len(lines) != 1 {
		t.Errorf("%d lines in the log: %v", len(lines), lines)
	}
}

// forger serves standbys at an address that it writes into the Lease.
type forger struct {
	address, certificate string

	mu     sync.Mutex
	tokens []string // of those who came
	took   int      // connections that were not closed at the answer
}

func startForger(tb testing.TB) *forger {
	tb.Helper()
	server := httptest.NewTLSServer(nil) // for its certificate
	tb.Cleanup(server.Close)
	sum := sha256.Sum256(server.Certificate().Raw)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: server.TLS.Certificates, MinVersion: tls.VersionTLS13})
	if err != nil {
		tb.Fatal(err)
	}
	f := &forger{address: listener.Addr().String(), certificate: hex.EncodeToString(sum[:])}
	var serving sync.WaitGroup
	tb.Cleanup(func() {
		_ = listener.Close()
		serving.Wait()
	})
	serving.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			f.serve(conn)
		}
	})
	return f
}

// serve takes any token, shows the same one, and then sends what would be an empty state.
func (f *forger) serve(conn net.Conn) {
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(wide))
	text, err := receiveHello(conn)
	var hello struct{ Token string }
	if err != nil || json.Unmarshal([]byte(text), &hello) != nil {
		return
	}
	f.mu.Lock()
	f.tokens = append(f.tokens, hello.Token)
	f.mu.Unlock()
	if sendHello(conn, map[string]any{"protocol": 1, "token": hello.Token}) != nil {
		return
	}
	whole := append(binary.BigEndian.AppendUint32([]byte{'W'}, 16), make([]byte, 16)...)
	if _, err := conn.Write(whole); err == nil {
		if _, err := io.ReadFull(conn, make([]byte, 1)); err == nil { // it acknowledges
			f.mu.Lock()
			f.took++
			f.mu.Unlock()
		}
	}
}

// TestExtendedForgedLease: an account that may write Leases, and nothing else, writes itself into the Lease as the leader, with the highest term.
// The leader ends, as it must; the standby gives its token away and takes nothing. That token opens nothing; and once the forger does
// not renew, the replicas go on.
func TestExtendedForgedLease(t *testing.T) {
	beside(t)
	r := startLoaded(t, "forged", 49)
	leader, others := r.Leader()
	more(t, r.read, 50)
	account, err := plane(t).ServiceAccountConfig(t.Context(), r.namespace, "forger")
	if err != nil {
		t.Fatal(err)
	}
	grantLeases(t, r.namespace, "forger")
	forger := startForger(t)
	client := objectsIn(t, account, leases, r.namespace).client
	eventually(t, wide, "the Lease is forged", func() error {
		lease, err := client.Get(t.Context(), "kubeferry", metav1.GetOptions{})
		if err != nil {
			return err
		}
		annotations := lease.GetAnnotations()
		annotations["kubeferry.dev/address"], annotations["kubeferry.dev/certificate-sha256"] = forger.address, forger.certificate
		annotations["kubeferry.dev/term"] = strconv.FormatUint(math.MaxUint64, 10)
		lease.SetAnnotations(annotations)
		if err := unstructured.SetNestedField(lease.Object, "forger", "spec", "holderIdentity"); err != nil {
			return err
		}
		_, err = client.Update(t.Context(), lease, metav1.UpdateOptions{})
		return err
	})
	leader.Ends(wide)
	r.Remove(leader)
	others[0].WaitLogged(wide, "no connection to the leader", "no replica")
	r.StartIn(leader.dir)
	r.WaitInSync()
	more(t, r.read, 100)

	forger.mu.Lock()
	tokens, took := forger.tokens, forger.took
	forger.mu.Unlock()
	if len(tokens) == 0 || took > 0 {
		t.Errorf("%d tokens, %d took the forged state", len(tokens), took)
	}
	address, _ := r.Endpoint()
	for _, token := range tokens {
		if _, answer := helloTo(t, address, token); !strings.Contains(answer, "refused") {
			t.Errorf("the leader answers to the token of a standby that was made for another: %s", answer)
		}
	}
	if err := reviewOwn(t, tokens[0]); err == nil {
		t.Error("the API server takes the token")
	}
	r.Expect()
}

// grantLeases gives a ServiceAccount the right to write Leases in a namespace.
func grantLeases(tb testing.TB, namespace, account string) {
	tb.Helper()
	rbac := schema.GroupVersion{Group: "rbac.authorization.k8s.io", Version: "v1"}
	objectsIn(tb, plane(tb).Config(), rbac.WithResource("roles"), namespace).Create("leases", map[string]any{"rules": []any{map[string]any{
		"apiGroups": []any{leases.Group}, "resources": []any{leases.Resource}, "verbs": []any{"get", "update"},
	}}})
	objectsIn(tb, plane(tb).Config(), rbac.WithResource("rolebindings"), namespace).Create("leases", map[string]any{
		"roleRef":  map[string]any{"apiGroup": rbac.Group, "kind": "Role", "name": "leases"},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "namespace": namespace, "name": account}},
	})
}

// reviewOwn shows a token to the API server, which every user with a valid one may.
func reviewOwn(tb testing.TB, token string) error {
	tb.Helper()
	config := rest.AnonymousClientConfig(plane(tb).Config())
	config.BearerToken = token
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		tb.Fatal(err)
	}
	review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "default"}}
	_, err = client.AuthorizationV1().SelfSubjectRulesReviews().Create(tb.Context(), review, metav1.CreateOptions{})
	return err
}
