package webhook

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kubeferry/kubeferry/sinks"
)

func TestDescribe(t *testing.T) {
	record := &sinks.Record{
		DedupID: "p/c/u/1/ADDED", ContentType: "application/json", BatchContentType: "application/json",
		Headers: map[string]string{"kubeferry-id": "c/u/1/ADDED"}, Body: []byte(`{}`),
	}
	config := NewConfig()
	config.URL = "https://hooks.example.com/planted?q=planted"
	config.Headers = map[string]string{"X-Token": "planted"}
	config.Auth = &Auth{Basic: &Basic{Username: "planted", Password: "planted"}}
	config.Signature = &Signature{SecretFile: "planted"} // there is no such file
	config.Compression = compressionGzip
	got := config.Describe(record)
	const want = "[{authorization …} {content-encoding gzip} {content-type application/json} {kubeferry-id c/u/1/ADDED} " +
		"{webhook-id p/c/u/1/ADDED} {webhook-signature …} {webhook-timestamp …} {x-token …}]"
	if got.Err != nil || got.Place != "POST https://hooks.example.com/…" || string(got.Body) != `{}` || fmt.Sprint(got.Headers) != want {
		t.Errorf("got %+v", got)
	}
	config.URL, config.Batch.MaxRecords = "https://hooks.example.com", 2
	if got := config.Describe(record); got.Place != "POST https://hooks.example.com" || string(got.Body) != `[{}]` || strings.Contains(fmt.Sprint(got), "planted") {
		t.Errorf("got %+v", got)
	}
	config.URL = "https://planted:planted@x"
	if got := config.Describe(record); got.Err == nil || strings.Contains(fmt.Sprintf("%+v", got), "planted") {
		t.Errorf("a URL that is none: got %+v", got)
	}
}
