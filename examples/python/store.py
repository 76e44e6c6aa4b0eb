"""Keeps, in SQLite, a table of what exists in the clusters and a log of what happened."""

import json
import re
import sqlite3
import sys

sys.setrecursionlimit(50_000)  # objects may be nested 10,000 levels deep

# objects has the highest record of each object, marks the highest mark of each snapshot, and existing is the table of what exists.
SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS objects (
  cluster TEXT, pipeline TEXT, subject TEXT, resource TEXT, namespace TEXT, uid TEXT, version TEXT,
  sequence TEXT, deleted INTEGER, snapshot TEXT, object TEXT,
  PRIMARY KEY (cluster, pipeline, subject));
CREATE TABLE IF NOT EXISTS marks (
  cluster TEXT, pipeline TEXT, resource TEXT, namespace TEXT, snapshot TEXT,
  PRIMARY KEY (cluster, pipeline, resource, namespace));
CREATE VIEW IF NOT EXISTS existing AS
SELECT * FROM objects AS o WHERE NOT deleted AND NOT EXISTS (
  SELECT 1 FROM marks AS m
  WHERE m.cluster = o.cluster AND m.pipeline = o.pipeline AND m.resource = o.resource AND m.namespace IN (o.namespace, '')
    AND m.snapshot > o.sequence AND m.snapshot > o.snapshot);
CREATE TABLE IF NOT EXISTS log (
  n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, cluster TEXT, pipeline TEXT, subject TEXT, sequence TEXT, type TEXT, data TEXT,
  UNIQUE (pipeline, id));
"""

# Changes the row of an object if the record is above what is there.
RECORD = """
INSERT INTO objects (cluster, pipeline, subject, resource, namespace, uid, version, sequence, deleted, snapshot, object)
VALUES (:cluster, :pipeline, :subject, :resource, :namespace, :uid, :version, :sequence, :deleted, :snapshot, :object)
ON CONFLICT (cluster, pipeline, subject) DO UPDATE SET uid = excluded.uid, version = excluded.version, sequence = excluded.sequence,
  deleted = excluded.deleted, snapshot = excluded.snapshot, object = excluded.object
WHERE (excluded.sequence, excluded.deleted, excluded.snapshot) > (objects.sequence, objects.deleted, objects.snapshot)
"""

# Changes the mark of a snapshot if this one is higher.
MARK = """
INSERT INTO marks (cluster, pipeline, resource, namespace, snapshot) VALUES (:cluster, :pipeline, :resource, :namespace, :snapshot)
ON CONFLICT (cluster, pipeline, resource, namespace) DO UPDATE SET snapshot = excluded.snapshot WHERE excluded.snapshot > marks.snapshot
"""

# Takes each change and each gap once.
NOTE = """
INSERT INTO log (id, cluster, pipeline, subject, sequence, type, data) VALUES (:id, :cluster, :pipeline, :subject, :sequence, :type, :object)
ON CONFLICT DO NOTHING
"""

NAMESPACE = re.compile("/apis?(?:/[^/]+){1,2}/namespaces/([^/]+)/[^/]+/[^/]+")


def read(decode, message, place):
    """What decode makes of a message; None if it cannot be read."""
    try:
        return decode(message)
    except Exception as error:
        print(f"{place}: {error}", flush=True)


class Store:
    def __init__(self, file):
        # Transactions are begun and ended by `with self.db`, except for the one of the schema.
        self.db = sqlite3.connect(file, check_same_thread=False, timeout=10)
        self.db.executescript(SCHEMA)

    def apply(self, events):
        """Stores events in one transaction. Once it returns they may be acknowledged."""
        with self.db:
            for event in events:
                if event is not None:
                    self._apply(event)

    def _apply(self, event):
        data = event.get_data()
        type = data["type"]
        if type not in ("ADDED", "MODIFIED", "DELETED", "GAP", "SNAPSHOT"):
            return  # of a later version
        gvr = data["resource"]
        row = {
            "id": event.get_id(),
            "cluster": event.get_source().removeprefix("/clusters/"),
            "pipeline": event.get_extension("pipeline") or "",
            "subject": event.get_subject(),
            "sequence": event.get_extension("sequence") or "",
            "snapshot": event.get_extension("snapshotsequence") or "",
            "type": type,
            "resource": "/".join(filter(None, [gvr["group"], gvr["version"], gvr["resource"]])),
            "namespace": data.get("namespace", ""),
            "deleted": type == "DELETED",
            "object": json.dumps(data.get("object", data)),
        }
        if type == "SNAPSHOT":
            if data["complete"]:
                self.db.execute(MARK, row)
            return
        if type != "GAP":  # transforms may have removed from the object what the id and the subject have
            namespaced = NAMESPACE.fullmatch(row["subject"])
            row["namespace"] = namespaced[1] if namespaced else ""
            _, row["uid"], row["version"], _ = row["id"].rsplit("/", 3)
            self.db.execute(RECORD, row)
        self.db.execute(NOTE, row)
