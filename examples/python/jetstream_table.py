"""Keeps a table of what exists and a log of what happened, from a stream. The server knows how far it has read."""

import argparse
import asyncio

import nats
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from nats.js.api import AckPolicy, ConsumerConfig

from store import Store, read

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--url", default="nats://localhost:4222")
parser.add_argument("--stream", default="KUBEFERRY")
parser.add_argument("--consumer", default="table", help="durable consumer")
parser.add_argument("--db", default="table.db")
args = parser.parse_args()


async def follow(js, store):
    """Stores what a durable consumer delivers. What was not acknowledged comes again, perhaps behind later messages."""
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, ack_wait=10, max_ack_pending=1000)
    consumer = await js.pull_subscribe("", durable=args.consumer, stream=args.stream, config=config)
    while True:
        try:
            messages = await consumer.fetch(500, timeout=1)
        except asyncio.TimeoutError:
            continue
        # The binding to NATS has the headers of that to HTTP.
        store.apply(read(from_http_event, HTTPMessage(dict(m.headers or {}), m.data), m.metadata.sequence.stream) for m in messages)
        for message in messages:
            await message.ack()


async def main():
    store = Store(args.db)
    connection = await nats.connect(args.url, max_reconnect_attempts=-1)
    while True:
        try:
            await follow(connection.jetstream(), store)
        except nats.errors.Error as error:  # the server or the stream is away; the client connects again by itself
            print(error, flush=True)
            await asyncio.sleep(1)


asyncio.run(main())
