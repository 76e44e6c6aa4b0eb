"""Keeps a table of what exists and a log of what happened, from topics. Several of it, with one --group, share the partitions and
the database."""

import argparse

from cloudevents.core.bindings.kafka import KafkaMessage, from_kafka_event
from confluent_kafka import Consumer, KafkaException

from store import Store, read

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--brokers", default="localhost:9092")
parser.add_argument("--topic", default="k8s", help="topics, comma-separated")
parser.add_argument("--group", default="table")
parser.add_argument("--db", default="table.db")
args = parser.parse_args()

store = Store(args.db)
consumer = Consumer({
    "bootstrap.servers": args.brokers,
    "group.id": args.group,
    "auto.offset.reset": "earliest",
    "enable.auto.commit": False,
    "session.timeout.ms": 10_000,  # after which another member gets the partitions of one that was killed
})
consumer.subscribe(args.topic.split(","))
while True:
    messages = []
    for message in consumer.consume(num_messages=500, timeout=1):
        if message.error():
            print(message.error(), flush=True)  # the client tries again by itself
        elif message.value() is not None:  # a tombstone
            place = message.topic(), message.partition(), message.offset()
            messages.append(read(from_kafka_event, KafkaMessage(dict(message.headers() or []), message.key(), message.value()), place))
    if messages:
        store.apply(messages)
        try:
            consumer.commit(asynchronous=False)  # once it is stored
        except KafkaException as e:  # another member has the partitions now, or the broker is away
            print(e, flush=True)  # what is not committed comes again
