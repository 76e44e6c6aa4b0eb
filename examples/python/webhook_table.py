"""Keeps a table of what exists and a log of what happened, from signed webhooks."""

import argparse
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from standardwebhooks import Webhook, WebhookVerificationError

from store import Store, row

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--listen", default="localhost:8080")
parser.add_argument("--secret", default="secret", help="file with the secret of the sink's signature.secretFile")
parser.add_argument("--db", default="table.db")
args = parser.parse_args()

store = Store(args.db)
lock = threading.Lock()  # one request at a time uses the database
secret = open(args.secret).read().strip()
if not secret.removeprefix("whsec_"):  # anyone could sign with it
    raise SystemExit("the secret is empty")
webhook = Webhook(secret)  # base64, with or without whsec_


def decode(headers, body):
    """The rows of a request: of one event, or of an array of them."""
    if "batch" not in headers.get("content-type", ""):
        return [row(from_http_event(HTTPMessage(headers, body)))]
    single = {"content-type": "application/cloudevents+json"}
    return [row(from_http_event(HTTPMessage(single, json.dumps(event).encode()))) for event in json.loads(body)]


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # which keeps connections open

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            webhook.verify(body, headers, json_parse=False)
        except WebhookVerificationError:
            return self.answer(401)
        try:
            rows = decode(headers, body)
        except Exception as error:
            print(error, flush=True)
            return self.answer(400)  # it would not be better the next time: a dead letter
        with lock:
            store.apply(rows)
        self.answer(204)  # and only now; an exception above closes the connection, and the request comes again

    def answer(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


host, port = args.listen.rsplit(":", 1)
ThreadingHTTPServer((host, int(port)), Receiver).serve_forever()
