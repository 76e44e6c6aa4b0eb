"""Keeps, in SQLite, a table of what exists in the clusters and a log of what happened."""

import json
import re
import sqlite3
import sys

sys.setrecursionlimit(50_000)  # objects may be nested 10,000 levels deep

# objects has the highest record of each object, marks the highest complete mark, and the view existing is what exists.
SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS objects (
  cluster TEXT NOT NULL, pipeline TEXT NOT NULL, subject TEXT NOT NULL, resource TEXT NOT NULL, namespace TEXT NOT NULL,
  uid TEXT NOT NULL, version TEXT NOT NULL, sequence TEXT NOT NULL, deleted BOOLEAN NOT NULL, snapshot_sequence TEXT NOT NULL,
  object TEXT NOT NULL,
  PRIMARY KEY (cluster, pipeline, subject));
CREATE TABLE IF NOT EXISTS marks (
  cluster TEXT NOT NULL, pipeline TEXT NOT NULL, resource TEXT NOT NULL, namespace TEXT NOT NULL, snapshot_sequence TEXT NOT NULL,
  PRIMARY KEY (cluster, pipeline, resource, namespace));
CREATE VIEW IF NOT EXISTS existing AS
SELECT * FROM objects AS o WHERE NOT deleted AND NOT EXISTS (
  SELECT 1 FROM marks AS m
  WHERE m.cluster = o.cluster AND m.pipeline = o.pipeline AND m.resource = o.resource AND m.namespace IN (o.namespace, '')
    AND m.snapshot_sequence > o.sequence AND m.snapshot_sequence > o.snapshot_sequence);
CREATE TABLE IF NOT EXISTS log (
  n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL, cluster TEXT NOT NULL, pipeline TEXT NOT NULL, subject TEXT NOT NULL,
  sequence TEXT NOT NULL, time TEXT NOT NULL, type TEXT NOT NULL, baseline BOOLEAN NOT NULL,
  inferred BOOLEAN NOT NULL, data TEXT NOT NULL,
  UNIQUE (pipeline, id));
"""

# Changes the row of an object if the record is above what is there.
RECORD = """
INSERT INTO objects (cluster, pipeline, subject, resource, namespace, uid, version, sequence, deleted, snapshot_sequence, object)
VALUES (:cluster, :pipeline, :subject, :resource, :namespace, :uid, :version, :sequence, :deleted, :snapshot_sequence, :object)
ON CONFLICT (cluster, pipeline, subject) DO UPDATE SET uid = excluded.uid, version = excluded.version, sequence = excluded.sequence,
  deleted = excluded.deleted, snapshot_sequence = excluded.snapshot_sequence, object = excluded.object
WHERE (excluded.sequence, excluded.deleted, excluded.snapshot_sequence) > (objects.sequence, objects.deleted, objects.snapshot_sequence)
"""

# Changes the mark of a snapshot if this one is higher.
MARK = """
INSERT INTO marks (cluster, pipeline, resource, namespace, snapshot_sequence)
VALUES (:cluster, :pipeline, :resource, :namespace, :snapshot_sequence)
ON CONFLICT (cluster, pipeline, resource, namespace) DO UPDATE SET snapshot_sequence = excluded.snapshot_sequence
WHERE excluded.snapshot_sequence > marks.snapshot_sequence
"""

# Takes each change and each gap once. A record of a snapshot is a baseline: it says what existed, and not what happened.
NOTE = """
INSERT INTO log (id, cluster, pipeline, subject, sequence, time, type, baseline, inferred, data)
VALUES (:id, :cluster, :pipeline, :subject, :sequence, :time, :type, :baseline, :inferred, :object)
ON CONFLICT (pipeline, id) DO NOTHING
"""

NAMESPACE = re.compile("/apis?(?:/[^/]+){1,2}/namespaces/([^/]+)/[^/]+/[^/]+")


def read(decode, message, place):
    """The row of a message; None if it cannot be read, or is of a later version of kubeferry."""
    try:
        return row(decode(message))
    except Exception as error:
        print(f"{place}: {error}", flush=True)


def row(event):
    """What the statements need of an event."""
    data = event.get_data()
    type = data["type"]
    if type not in ("ADDED", "MODIFIED", "DELETED", "GAP", "SNAPSHOT"):
        return None
    gvr = data["resource"]
    values = {
        "id": event.get_id(),
        "cluster": event.get_source().removeprefix("/clusters/"),
        "pipeline": event.get_extension("pipeline") or "",
        "subject": event.get_subject(),
        "sequence": event.get_extension("sequence") or "",
        "snapshot_sequence": event.get_extension("snapshotsequence") or "",
        "time": event.get_time().isoformat(),
        "type": type,
        "resource": "/".join(filter(None, [gvr["group"], gvr["version"], gvr["resource"]])),
        "namespace": data.get("namespace", ""),
        "deleted": type == "DELETED",
        "baseline": data.get("snapshot", False),
        "inferred": data.get("inferred", False),
        "complete": data.get("complete", False),
        "object": json.dumps(data.get("object", data)),
    }
    if type not in ("GAP", "SNAPSHOT"):  # transforms may have removed from the object what the id and the subject have
        namespaced = NAMESPACE.fullmatch(values["subject"])
        values["namespace"] = namespaced[1] if namespaced else ""
        _, values["uid"], values["version"], _ = values["id"].rsplit("/", 3)
    return values


class Store:
    def __init__(self, file):
        # Transactions are begun and ended by `with self.db`, except for the one of the schema.
        self.db = sqlite3.connect(file, check_same_thread=False, timeout=10)
        self.db.executescript(SCHEMA)

    def apply(self, rows):
        """Stores rows in one transaction. Once it returns they may be acknowledged."""
        with self.db:
            for values in filter(None, rows):
                if values["type"] == "SNAPSHOT":
                    if values["complete"]:
                        self.db.execute(MARK, values)
                    continue
                if values["type"] != "GAP":
                    self.db.execute(RECORD, values)
                self.db.execute(NOTE, values)
