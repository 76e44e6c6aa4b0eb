package sinks_test

import (
	"encoding/base64"
	"net/url"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/kubeferry/kubeferry/sinks"
	"github.com/kubeferry/kubeferry/sinks/kafka"
	"github.com/kubeferry/kubeferry/sinks/sinktest"
)

// TestKafkaIAM logs in as to Amazon MSK. The stand-in for a broker refuses the first token, and takes others that are signed by the
// right client for the right region.
func TestKafkaIAM(t *testing.T) {
	const secret = "s3cr3t/of+aws"
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
	t.Setenv("AWS_SECRET_ACCESS_KEY", secret)
	t.Setenv("AWS_SESSION_TOKEN", "")
	t.Setenv("AWS_CONFIG_FILE", filepath.Join(t.TempDir(), "none"))

	link := newProxy(t)
	cluster := newFake(t, link, kfake.SeedTopics(1, "iam"))
	cluster.ControlKey(int16(kmsg.SASLHandshake), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if mechanism := request.(*kmsg.SASLHandshakeRequest).Mechanism; mechanism != "OAUTHBEARER" {
			t.Errorf("got the mechanism %s", mechanism)
		}
		return request.ResponseKind(), nil, true
	})
	var logins atomic.Int32
	cluster.ControlKey(int16(kmsg.SASLAuthenticate), func(request kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		response := request.ResponseKind().(*kmsg.SASLAuthenticateResponse)
		if logins.Add(1) == 1 || !signedForMSK(request.(*kmsg.SASLAuthenticateRequest).SASLAuthBytes) {
			response.SASLAuthBytes = []byte(`{"status":"Access denied"}`)
		}
		return response, nil, true
	})

	config := kafkaConfig("iam", link.Addr())
	config.SASL = &kafka.SASL{Mechanism: "AWS_MSK_IAM", Region: "eu-central-1"}
	if faults := config.Validate(); len(faults) != 1 || !faults[0].Warning {
		t.Fatalf("got %+v, want the warning about plaintext", faults)
	}
	sink := openSink(t, config)
	deliverUntil(t, sink, []sinks.Record{sinktest.NewRecord("a", 1)}, func(class *sinks.Error) bool {
		if strings.Contains(class.Error(), secret) {
			t.Errorf("the secret shows in %q", class)
		}
		return class.Reason == sinks.ReasonUnauthorized && !class.Permanent && strings.Contains(class.Error(), "Access denied")
	})
	deliverAll(t, sink, []sinks.Record{sinktest.NewRecord("a", 1)})
	if got := len(readFake(t, cluster, "iam", "", "")); got != 1 {
		t.Errorf("got %d records stored, want 1", got)
	}
}

// signedForMSK reports whether a message of OAUTHBEARER has a token such as Amazon MSK takes.
func signedForMSK(message []byte) bool {
	token, ok := strings.CutPrefix(string(message), "n,,\x01auth=Bearer ")
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimSuffix(token, "\x01\x01"))
	if !ok || err != nil {
		return false
	}
	signed, err := url.Parse(string(text))
	if err != nil {
		return false
	}
	query := signed.Query()
	at, err := time.Parse("20060102T150405Z", query.Get("X-Amz-Date"))
	return err == nil && time.Since(at).Abs() < 15*time.Minute && query.Get("X-Amz-Expires") == "900" &&
		signed.Host == "kafka.eu-central-1.amazonaws.com" && query.Get("Action") == "kafka-cluster:Connect" &&
		query.Get("X-Amz-Credential") == "AKIDEXAMPLE/"+at.Format("20060102")+"/eu-central-1/kafka-cluster/aws4_request" &&
		len(query.Get("X-Amz-Signature")) == 64
}
