package sinks_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/kafka"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
	"github.com/kubeferry/kubeferry/test/kafkatest"
)

// unsigned returns a token such as a broker takes that verifies no signatures.
func unsigned(t *testing.T, user string, valid time.Duration) string {
	t.Helper()
	claims, err := json.Marshal(map[string]any{"sub": user, "iat": time.Now().Add(-time.Minute).Unix(), "exp": time.Now().Add(valid).Unix()})
	if err != nil {
		t.Fatal(err)
	}
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(`{"alg":"none"}`)) + "." + encode(claims) + "."
}

// testKafkaBearer logs in by OAUTHBEARER, with a token from a file, which rotates, and from a token server.
func testKafkaBearer(t *testing.T, broker *kafkaServer) {
	t.Helper()
	address := broker.AddrOf(kafkatest.SASL)
	broker.CreateTopic("bearer", 1)
	broker.allow(t, "User:bearer", kadm.OpWrite, "bearer")
	dir := t.TempDir()
	path := filepath.Join(dir, "token")
	open := func(sasl kafka.SASL) sinks.Sink {
		config := kafkaConfig("bearer", address)
		config.TLS = &sinks.TLS{CAFile: broker.caFile}
		sasl.Mechanism, sasl.Extensions = "OAUTHBEARER", map[string]string{"logicalCluster": "lkc-1"}
		config.SASL = &sasl
		return openSink(t, config)
	}
	refused := func(class *sinks.Error) bool { return class.Reason == sinks.ReasonUnauthorized && !class.Permanent }

	expired := unsigned(t, "bearer", -time.Minute/2)
	write(t, path, []byte(expired))
	sink := open(kafka.SASL{TokenFile: path})
	deliverUntil(t, sink, []sinks.Record{sinktest.NewRecord("a", 1)}, func(class *sinks.Error) bool {
		if strings.Contains(class.Error(), expired) {
			t.Errorf("the token shows in %q", class)
		}
		return refused(class)
	})
	write(t, path, []byte(unsigned(t, "bearer", time.Hour)+"\n"))
	deliverAll(t, sink, []sinks.Record{sinktest.NewRecord("a", 1)})

	const secret = "cl13nt-s3cr3t"
	write(t, filepath.Join(dir, "secret"), []byte("another secret\n"))
	var made atomic.Int32
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, got, _ := r.BasicAuth()
		if id != "ferry" || got != secret || r.FormValue("grant_type") != "client_credentials" || r.FormValue("scope") != "write read" ||
			r.FormValue("audience") != "kafka" {
			http.Error(w, `{"error":"invalid_client"}`, http.StatusUnauthorized)
			return
		}
		made.Add(1)
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintf(w, `{"access_token":%q,"token_type":"Bearer","expires_in":3600}`, unsigned(t, "bearer", time.Hour))
	}))
	t.Cleanup(tokens.Close)
	sink = open(kafka.SASL{OAuth2: &sinks.OAuth2{
		TokenURL: tokens.URL + "/token", ClientID: "ferry", ClientSecretFile: filepath.Join(dir, "secret"), Scopes: []string{"write", "read"},
		Parameters: map[string]string{"audience": "kafka"},
	}})
	deliverUntil(t, sink, []sinks.Record{sinktest.NewRecord("b", 1)}, refused)
	write(t, filepath.Join(dir, "secret"), []byte(secret+"\n"))
	deliverAll(t, sink, []sinks.Record{sinktest.NewRecord("b", 1)})
	if err := sink.(sinks.Checker).Check(within(t, 20*time.Second)); err != nil {
		t.Error(err)
	}
	if n := made.Load(); n != 1 {
		t.Errorf("%d tokens were made for several connections, want one", n)
	}
	if got := len(readAll(t, broker, "bearer")); got != 2 {
		t.Errorf("got %d records stored, want 2", got)
	}
}

// testKafkaNewTopics makes a topic with settings of its own.
func testKafkaNewTopics(t *testing.T, broker *kafkaServer) {
	t.Helper()
	config := kafkaConfig("new.{namespace}", broker.Addr())
	config.CreateTopics = true
	config.NewTopics = &kafka.NewTopics{Partitions: 7, ReplicationFactor: 1, CleanupPolicy: "compact,delete"}
	deliverAll(t, openSink(t, config), []sinks.Record{sinktest.NewRecord("a", 1)})
	got := broker.Settings("new.shop")
	if got["partitions"] != "7" || got["cleanup.policy"] != "compact,delete" && got["cleanup.policy"] != "delete,compact" {
		t.Errorf("got %v", got)
	}

	config = kafkaConfig("never.{namespace}", broker.Addr())
	config.CreateTopics = true
	config.NewTopics = &kafka.NewTopics{ReplicationFactor: 100}
	deliverUntil(t, openSink(t, config), []sinks.Record{sinktest.NewRecord("a", 1)}, func(class *sinks.Error) bool {
		return class.Reason == sinks.ReasonRejected && !class.Permanent && strings.Contains(strings.ToLower(class.Error()), "replication")
	})
}
