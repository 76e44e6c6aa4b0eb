// Command webhook keeps a table of what exists and a log of what happened, from signed webhooks.
package main

import (
	"context"
	"errors"
	"flag"
	"io"
	"log"
	"net/http"
	"os"
	"strings"

	standardwebhooks "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/kubeferry/kubeferry/consume"
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
	records, err := consume.Decode(req.Header.Get, body)
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
