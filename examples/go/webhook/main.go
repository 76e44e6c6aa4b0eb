// Command webhook keeps a table of what exists and a log of what happened, from signed webhooks.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"

	"github.com/cloudevents/sdk-go/v2/event"
	cloudevents "github.com/cloudevents/sdk-go/v2/protocol/http"
	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/kubeferry/kubeferry/consume"
	"github.com/kubeferry/kubeferry/examples/go/events"
	"github.com/kubeferry/kubeferry/examples/go/store"
)

func main() {
	listen := flag.String("listen", "localhost:8080", "host:port")
	secretFile := flag.String("secret", "secret", "file with the secret of the sink's signature.secretFile")
	file := flag.String("db", "table.db", "SQLite database")
	flag.Parse()
	secret, err := os.ReadFile(*secretFile)
	if err != nil {
		log.Fatal(err)
	}
	text := strings.TrimSpace(string(secret))
	if strings.TrimPrefix(text, "whsec_") == "" { // anyone could sign with it
		log.Fatal("the secret is empty")
	}
	webhook, err := standardwebhooks.NewWebhook(text) // base64, with or without whsec_
	if err != nil {
		log.Fatal(err)
	}
	r := &receiver{webhook: webhook}
	if r.db, err = store.Open(context.Background(), *file); err != nil {
		log.Fatal(err)
	}
	log.Fatal(http.ListenAndServe(*listen, r))
}

type receiver struct {
	webhook *standardwebhooks.Webhook
	db      *store.Store
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, req *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, 16<<20))
	if tooLarge := new(http.MaxBytesError); errors.As(err, &tooLarge) {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge) // a dead letter
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError) // it comes again
		return
	}
	if err := r.webhook.Verify(body, req.Header); err != nil {
		http.Error(w, err.Error(), http.StatusUnauthorized)
		return
	}
	records, err := read(req.Header, body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest) // it would not be better the next time: a dead letter
		return
	}
	if err := r.db.Apply(req.Context(), records); err != nil {
		log.Print(err)
		http.Error(w, "cannot store it", http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(http.StatusNoContent) // and only now
}

// read reads an event, or a batch of them.
func read(header http.Header, body []byte) (records []consume.Record, err error) {
	if !cloudevents.IsHTTPBatch(header) {
		headers := map[string]string{}
		for name := range header {
			headers[strings.ToLower(name)] = header.Get(name)
		}
		record, err := events.Read("ce-", headers, body)
		return []consume.Record{record}, err
	}
	var batch []event.Event
	if err := json.Unmarshal(body, &batch); err != nil {
		return nil, fmt.Errorf("read a batch: %w", err)
	}
	for _, e := range batch {
		record, err := events.Record(e)
		if err != nil {
			return nil, err
		}
		records = append(records, record)
	}
	return records, nil
}
