"""Keeps a table of what exists and a log of what happened, from a stream. How far it has read is in the database."""

import argparse
import asyncio
import sys

import nats
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from store import Store, read

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--url", default="nats://localhost:4222")
parser.add_argument("--stream", default="k8s")
parser.add_argument("--db", default="table.db")
args = parser.parse_args()


async def follow(js, store):
    """Makes a consumer that begins with the last message that is stored, and stores what it delivers, until a message is missing.

    Of a durable consumer that one would come later, behind changes that were made after it."""
    position = store.position()
    config = ConsumerConfig(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=max(position, 1),
                            ack_policy=AckPolicy.NONE, inactive_threshold=60, mem_storage=True)
    consumer = await js.pull_subscribe("", stream=args.stream, config=config)
    delivered = 0
    while True:
        try:
            messages = await consumer.fetch(500, timeout=1)
        except asyncio.TimeoutError:
            messages = []
        # Behind one that was lost on its way the numbers do not match.
        messages = [m for n, m in enumerate(messages, delivered + 1) if m.metadata.sequence.consumer == n]
        delivered += len(messages)
        numbers = [m.metadata.sequence.stream for m in messages]
        if not numbers or numbers[0] > position + 1 or numbers[-1] >= numbers[0] + len(numbers):
            state = (await js.stream_info(args.stream)).state
            if 0 < position < state.first_seq - 1 or position > state.last_seq:
                sys.exit(f"the stream has lost what follows message {position}: begin with an empty database, and request a snapshot")
            if not numbers and position < state.last_seq:
                return await consumer.unsubscribe()
        # The binding to NATS has the headers of that to HTTP.
        events = [read(from_http_event, HTTPMessage(dict(m.headers or {}), m.data), m.metadata.sequence.stream) for m in messages]
        store.apply((event, 0, number) for event, number in zip(events, numbers))
        position = max([position, *numbers])


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
