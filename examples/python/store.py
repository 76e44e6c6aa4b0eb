"""Keeps, in SQLite, a table of what exists in the clusters and a log of what happened."""

import json
import re
import sqlite3
import sys

sys.setrecursionlimit(50_000)  # objects may be nested 10,000 levels deep

# A deleted object keeps its row, so that a late repetition does not bring it back. stream and position are where its last record stood.
# Each change is in the log once. positions has how far each stream is stored.
SCHEMA = """
PRAGMA journal_mode = WAL;
CREATE TABLE IF NOT EXISTS objects (
  cluster TEXT, subject TEXT, resource TEXT, namespace TEXT, uid TEXT, version TEXT,
  sequence TEXT, deleted INTEGER, object TEXT, stream INTEGER, position INTEGER,
  PRIMARY KEY (cluster, subject));
CREATE TABLE IF NOT EXISTS log (
  n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT, cluster TEXT, subject TEXT, sequence TEXT, type TEXT, data TEXT, UNIQUE (id, sequence));
CREATE TABLE IF NOT EXISTS snapshots (
  stream INTEGER, cluster TEXT, resource TEXT, namespace TEXT, name TEXT, position INTEGER, done INTEGER,
  PRIMARY KEY (stream, cluster, resource, namespace));
CREATE TABLE IF NOT EXISTS marks (stream INTEGER, id TEXT, PRIMARY KEY (stream, id));
CREATE TABLE IF NOT EXISTS positions (stream INTEGER PRIMARY KEY, position INTEGER, time TEXT);
CREATE TRIGGER IF NOT EXISTS another BEFORE UPDATE ON positions WHEN NEW.position <= OLD.position
BEGIN SELECT RAISE(ABORT, 'the stream was made again, or is another one: begin with an empty database'); END;
"""

# Changes no row for what is stored already: a snapshot may have removed since what would come back.
ADVANCE = """
INSERT INTO positions (stream, position, time) VALUES (:stream, :position, :time)
ON CONFLICT (stream) DO UPDATE SET position = excluded.position,
  time = CASE WHEN excluded.time > positions.time THEN excluded.time ELSE positions.time END
WHERE excluded.position > positions.position OR excluded.time > positions.time
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

# The object exists nevertheless, which counts between the marks of a snapshot.
SEEN = """
UPDATE objects SET stream = :stream, position = :position WHERE cluster = :cluster AND subject = :subject
"""

# Before UPSERT: what is inferred or of a snapshot is no change if the state is known, and one under a known id if the state is back.
LOG = """
INSERT OR IGNORE INTO log (id, cluster, subject, sequence, type, data)
SELECT :id, :cluster, :subject, :sequence, :type, :object WHERE coalesce((SELECT CASE
  WHEN deleted = :deleted AND (deleted OR uid = :uid AND version = :version)
    OR sequence > :sequence OR sequence = :sequence AND deleted > :deleted AND sequence <> '' THEN 0
  WHEN uid = :uid AND (:deleted OR version = :version) THEN 1 END
  FROM objects WHERE :derived AND cluster = :cluster AND subject = :subject), NOT EXISTS (SELECT 1 FROM log WHERE id = :id))
"""

# Changes no row for a mark that is repeated, perhaps behind a later snapshot.
ONCE = "INSERT OR IGNORE INTO marks VALUES (:stream, :id)"

# Changes no row for one that was a dead letter: a later snapshot may have begun.
BEGIN = "INSERT OR REPLACE INTO snapshots SELECT :stream, :cluster, :resource, :namespace, :snapshot, :position, 0 WHERE NOT :replayed"

END = "UPDATE snapshots SET done = 1 WHERE (stream, cluster, resource, namespace, name) = (:stream, :cluster, :resource, :namespace, :snapshot)"

# Removes what a complete snapshot has not shown.
SWEEP = """
DELETE FROM objects WHERE stream = :stream AND cluster = :cluster AND resource = :resource
  AND (namespace = :namespace OR :namespace = '') AND NOT deleted
  AND position < (SELECT position FROM snapshots WHERE (stream, cluster, resource, namespace) = (:stream, :cluster, :resource, :namespace))
"""

NAMESPACE = re.compile("/apis?(?:/[^/]+){1,2}/namespaces/([^/]+)/[^/]+/[^/]+")


def read(decode, message, place):
    """What decode makes of a message. Of one that cannot be read nothing is stored but the position."""
    try:
        return decode(message)
    except Exception as error:
        print(f"{place}: {error}", flush=True)


class Store:
    def __init__(self, file):
        # Transactions are begun and ended by `with self.db`, except for the one of the schema.
        self.db = sqlite3.connect(file, check_same_thread=False, timeout=10)
        self.db.executescript(SCHEMA)

    def position(self):
        """How far stream 0 is stored, 0 if nothing is."""
        return self.db.execute("SELECT coalesce(max(position), 0) FROM positions WHERE stream = 0").fetchone()[0]

    def apply(self, arrivals):
        """Stores (event, stream, position) in one transaction. Once it returns the records may be acknowledged.

        stream and position are where the event stood: in which partition of a topic, at which offset. A stream that is in one order
        as a whole is 0."""
        with self.db:
            for event, stream, position in arrivals:
                self._apply(event, stream, position)

    def _apply(self, event, stream, position):
        row = {"stream": stream, "position": position, "time": event.get_time().isoformat() if event else ""}
        if self._run(ADVANCE, row) == 0 or event is None:
            return  # it is read again, or cannot be read
        data = event.get_data()
        type = data["type"]
        if type not in ("ADDED", "MODIFIED", "DELETED", "GAP", "SNAPSHOT"):
            return  # of a later version
        gvr = data["resource"]
        row.update({
            "id": event.get_id(),
            "cluster": event.get_source().removeprefix("/clusters/"),
            "subject": event.get_subject(),
            "sequence": event.get_extension("sequence") or "",
            "type": type,
            "resource": "/".join(filter(None, [gvr["group"], gvr["version"], gvr["resource"]])),
            "namespace": data.get("namespace", ""),
            "deleted": type == "DELETED",
            "object": json.dumps(data.get("object", data)),
            "derived": bool(data.get("snapshot") or data.get("inferred")),
            "snapshot": data.get("snapshot"),
            "replayed": bool(event.get_extension("replayed")),
            "uid": "",
            "version": "",
        })
        if type == "GAP":
            self._run(LOG, row)
        elif type == "SNAPSHOT" and self._run(ONCE, row) == 0:
            return
        elif type == "SNAPSHOT" and data["phase"] == "started":
            self._run(BEGIN, row)
        elif type == "SNAPSHOT":
            if self._run(END, row) > 0 and data["complete"]:
                self._run(SWEEP, row)
        else:  # transforms may have removed from the object what the id and the subject have
            namespaced = NAMESPACE.fullmatch(row["subject"])
            row["namespace"] = namespaced[1] if namespaced else ""
            _, row["uid"], row["version"], _ = row["id"].rsplit("/", 3)
            self._run(LOG, row)
            if self._run(UPSERT, row) == 0:
                self._run(SEEN, row)

    def _run(self, statement, row):
        return self.db.execute(statement, row).rowcount
