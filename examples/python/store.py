"""Keeps, in SQLite, a table of what exists in the clusters and a log of what happened."""

import json
import sqlite3

# A deleted object keeps its row, so that a late repetition does not bring it back. stream and position are where its last record stood.
# Each change is in the log once; read it in the order of subject and sequence, since some transports deliver late.
SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS objects (
  cluster TEXT, subject TEXT, resource TEXT, namespace TEXT, uid TEXT, version TEXT,
  sequence TEXT, deleted INTEGER, object TEXT, stream INTEGER, position INTEGER,
  PRIMARY KEY (cluster, subject));
CREATE TABLE IF NOT EXISTS log (
  n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, cluster TEXT, subject TEXT, sequence TEXT, type TEXT, data TEXT);
CREATE TABLE IF NOT EXISTS snapshots (
  stream INTEGER, cluster TEXT, resource TEXT, namespace TEXT, name TEXT, position INTEGER, done INTEGER,
  PRIMARY KEY (stream, cluster, resource, namespace));
"""

# Changes the row of an object only if the record is newer than what is there.
UPSERT = """
INSERT INTO objects (cluster, subject, resource, namespace, uid, version, sequence, deleted, object, stream, position)
VALUES (:cluster, :subject, :resource, :namespace, :uid, :version, :sequence, :deleted, :object, :stream, :position)
ON CONFLICT (cluster, subject) DO UPDATE SET uid = excluded.uid, version = excluded.version, sequence = excluded.sequence,
  deleted = excluded.deleted, object = excluded.object, stream = excluded.stream, position = excluded.position
WHERE excluded.sequence > objects.sequence OR excluded.sequence = ''
  OR excluded.sequence = objects.sequence AND excluded.deleted > objects.deleted
"""

SEEN = """
UPDATE objects SET stream = :stream, position = :position
WHERE cluster = :cluster AND subject = :subject AND (stream <> :stream OR position < :position)
"""

LOG = """
INSERT OR IGNORE INTO log (id, cluster, subject, sequence, type, data)
VALUES (:id, :cluster, :subject, :sequence, :type, :object)
"""

# Leaves a snapshot that is known as it is, since its mark may be repeated.
BEGIN = """
INSERT INTO snapshots VALUES (:stream, :cluster, :resource, :namespace, :snapshot, :position, 0)
ON CONFLICT DO UPDATE SET name = excluded.name, position = excluded.position, done = 0
WHERE excluded.name <> snapshots.name AND excluded.position > snapshots.position
"""

END = """
UPDATE snapshots SET done = 1
WHERE stream = :stream AND cluster = :cluster AND resource = :resource AND namespace = :namespace AND name = :snapshot AND NOT done
"""

# Removes what a complete snapshot has not shown.
SWEEP = """
DELETE FROM objects WHERE stream = :stream AND cluster = :cluster AND resource = :resource
  AND (namespace = :namespace OR :namespace = '') AND NOT deleted
  AND position < (SELECT position FROM snapshots WHERE stream = :stream AND cluster = :cluster AND resource = :resource
    AND namespace = :namespace)
"""


class Store:
    def __init__(self, file):
        # Transactions are begun and ended by `with self.db`, except for the one of the schema.
        self.db = sqlite3.connect(file, check_same_thread=False, timeout=10)
        self.db.executescript(SCHEMA)

    def last(self):
        """The highest position that is stored, for receivers that number what arrives."""
        query = "SELECT max(position) FROM (SELECT position FROM objects UNION ALL SELECT position FROM snapshots)"
        return self.db.execute(query).fetchone()[0] or 0

    def apply(self, arrivals):
        """Stores (event, stream, position) in one transaction. Once it returns the records may be acknowledged.

        stream and position are where the event stood: in which partition of a topic, at which offset. A stream that is in one order
        as a whole is 0."""
        with self.db:
            for event, stream, position in arrivals:
                self._apply(event, stream, position)

    def _apply(self, event, stream, position):
        data = event.get_data()
        gvr = data["resource"]
        row = {
            "id": event.get_id(),
            "cluster": event.get_source().removeprefix("/clusters/"),
            "subject": event.get_subject(),
            "sequence": event.get_extension("sequence") or "",
            "type": data["type"],
            "resource": "/".join(filter(None, [gvr["group"], gvr["version"], gvr["resource"]])),
            "namespace": data.get("namespace", ""),
            "deleted": data["type"] == "DELETED",
            "object": json.dumps(data.get("object", data)),
            "snapshot": data.get("snapshot"),
            "stream": stream,
            "position": position,
        }
        if row["type"] in ("ADDED", "MODIFIED", "DELETED"):
            metadata = data["object"]["metadata"]
            row.update(uid=metadata["uid"], version=metadata["resourceVersion"], namespace=metadata.get("namespace", ""))
            newer = self.db.execute(UPSERT, row).rowcount > 0
            if not newer:  # the object exists nevertheless, which counts between the marks of a snapshot
                self.db.execute(SEEN, row)
            # What was worked out from a list, or is of a snapshot, is no change where the state was known.
            if newer or not (data.get("snapshot") or data.get("inferred")):
                self.db.execute(LOG, row)
        elif row["type"] == "GAP":
            self.db.execute(LOG, row)
        elif row["type"] == "SNAPSHOT" and data["phase"] == "started":
            self.db.execute(BEGIN, row)
        elif row["type"] == "SNAPSHOT":
            if self.db.execute(END, row).rowcount > 0 and data["complete"]:
                self.db.execute(SWEEP, row)
        # Another type is one of a later version.
