"""Keeps a table of what exists and a log of what happened, from a stream, with a durable consumer."""

import argparse
import asyncio

import nats
from cloudevents.core.bindings.http import HTTPMessage, from_http_event
from nats.js.api import ConsumerConfig

from store import Store

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--url", default="nats://localhost:4222")
parser.add_argument("--stream", default="k8s")
parser.add_argument("--durable", default="table")
parser.add_argument("--db", default="table.db")
args = parser.parse_args()


async def main():
    store = Store(args.db)
    connection = await nats.connect(args.url, max_reconnect_attempts=-1)
    # What is under way when this program is killed comes after ack_wait, behind later records.
    config = ConsumerConfig(ack_wait=10, max_ack_pending=1000)
    consumer = await connection.jetstream().pull_subscribe("", durable=args.durable, stream=args.stream, config=config)
    while True:
        try:
            messages = await consumer.fetch(500, timeout=1)
        except asyncio.TimeoutError:  # there are none, or the server is away
            continue
        except nats.errors.Error as error:  # the client connects again by itself
            print(error, flush=True)
            await asyncio.sleep(1)
            continue
        # The binding to NATS has the headers of that to HTTP.
        events = [from_http_event(HTTPMessage(dict(m.headers), m.data)) for m in messages]
        store.apply((event, 0, m.metadata.sequence.stream) for event, m in zip(events, messages))
        for m in messages:
            await m.ack()  # once it is stored; what is not acknowledged comes again


asyncio.run(main())
