// Package store keeps, in SQLite, a table of what exists in the clusters and a log of what happened.
package store

import (
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	_ "modernc.org/sqlite" // the driver

	"github.com/kubeferry/kubeferry/consume"
)

const (
	// schema: a deleted object keeps its row, so that a late repetition does not bring it back. stream and position are where its last
	// record stood. Each change is in the log once. positions has how far each stream is stored.
	schema = `
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
BEGIN SELECT RAISE(ABORT, 'the stream was made again, or is another one: begin with an empty database'); END;`
	// advance changes no row for what is stored already: a snapshot may have removed since what would come back.
	advance = `
INSERT INTO positions (stream, position, time) VALUES (:stream, :position, :time)
ON CONFLICT (stream) DO UPDATE SET position = excluded.position,
  time = CASE WHEN excluded.time > positions.time THEN excluded.time ELSE positions.time END
WHERE excluded.position > positions.position OR excluded.time > positions.time`
	// upsert changes the row of an object only if the record is newer than what is there.
	upsert = `
INSERT INTO objects (cluster, subject, resource, namespace, uid, version, sequence, deleted, object, stream, position)
VALUES (:cluster, :subject, :resource, :namespace, :uid, :version, :sequence, :deleted, :object, :stream, :position)
ON CONFLICT (cluster, subject) DO UPDATE SET uid = excluded.uid, version = excluded.version, sequence = excluded.sequence,
  deleted = excluded.deleted, object = excluded.object, stream = excluded.stream, position = excluded.position
WHERE excluded.sequence > objects.sequence OR excluded.sequence = ''
  OR excluded.sequence = objects.sequence AND excluded.deleted > objects.deleted`
	// seen: the object exists nevertheless, which counts between the marks of a snapshot.
	seen = `UPDATE objects SET stream = :stream, position = :position WHERE cluster = :cluster AND subject = :subject`
	// record, before upsert: what is inferred or of a snapshot is no change if the state is known, and one under a known id if the state is back.
	record = `
INSERT OR IGNORE INTO log (id, cluster, subject, sequence, type, data)
SELECT :id, :cluster, :subject, :sequence, :type, :object WHERE coalesce((SELECT CASE
  WHEN deleted = :deleted AND (deleted OR uid = :uid AND version = :version)
    OR sequence > :sequence OR sequence = :sequence AND deleted > :deleted AND sequence <> '' THEN 0
  WHEN uid = :uid AND (:deleted OR version = :version) THEN 1 END
  FROM objects WHERE :derived AND cluster = :cluster AND subject = :subject), NOT EXISTS (SELECT 1 FROM log WHERE id = :id))`
	// once changes no row for a mark that is repeated, begin none for one that was a dead letter: a later snapshot may have begun.
	once  = `INSERT OR IGNORE INTO marks VALUES (:stream, :id)`
	begin = `INSERT OR REPLACE INTO snapshots SELECT :stream, :cluster, :resource, :namespace, :snapshot, :position, 0 WHERE NOT :replayed`
	end   = `UPDATE snapshots SET done = 1 WHERE (stream, cluster, resource, namespace, name) = (:stream, :cluster, :resource, :namespace, :snapshot)`
	// sweep removes what a complete snapshot has not shown.
	sweep = `
DELETE FROM objects WHERE stream = :stream AND cluster = :cluster AND resource = :resource
  AND (namespace = :namespace OR :namespace = '') AND NOT deleted
  AND position < (SELECT position FROM snapshots WHERE (stream, cluster, resource, namespace) = (:stream, :cluster, :resource, :namespace))`
)

// Arrival is a record and where it stood: in which partition of a topic, at which offset. A stream that is in one order as a whole is 0.
type Arrival struct {
	consume.Record
	Stream, Position int64
}

// Store is the database.
type Store struct{ db *sql.DB }

// Open opens the database in a file, which it creates if necessary.
func Open(ctx context.Context, file string) (*Store, error) {
	db, err := sql.Open("sqlite", "file:"+file+"?_pragma=journal_mode(WAL)&_pragma=busy_timeout(10000)&_txlock=immediate")
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	_, err = db.ExecContext(ctx, schema)
	return &Store{db}, err
}

// Position returns how far stream 0 is stored, 0 if nothing is.
func (s *Store) Position(ctx context.Context) (position int64, err error) {
	return position, s.db.QueryRowContext(ctx, `SELECT coalesce(max(position), 0) FROM positions WHERE stream = 0`).Scan(&position)
}

// Apply stores what arrived in one transaction. Once it returns nil the records may be acknowledged.
func (s *Store) Apply(ctx context.Context, arrivals []Arrival) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // of nothing, once it is committed
	for _, a := range arrivals {
		row := a.row()
		apply(a.Record, func(statement string) (rows int64) {
			var result sql.Result
			if err == nil {
				result, err = tx.ExecContext(ctx, statement, row...)
			}
			if err == nil {
				rows, err = result.RowsAffected()
			}
			return rows
		})
		if err != nil {
			return fmt.Errorf("store %s: %w", a.ID, err)
		}
	}
	return tx.Commit()
}

// apply applies a record. run runs a statement, and returns how many rows it changed.
func apply(r consume.Record, run func(statement string) (rows int64)) {
	switch {
	case run(advance) == 0: // it is read again
	case r.IsChange():
		run(record)
		if run(upsert) == 0 {
			run(seen)
		}
	case r.Type == consume.Gap:
		run(record)
	case r.Type == consume.Mark && run(once) == 0:
	case r.Type == consume.Mark && r.Phase == consume.Started:
		run(begin)
	case r.Type == consume.Mark && run(end) > 0 && r.Complete:
		run(sweep)
	}
}

// row has the values of all statements.
func (a *Arrival) row() []any {
	return []any{
		sql.Named("id", a.ID), sql.Named("cluster", a.Cluster), sql.Named("subject", a.Subject), sql.Named("sequence", a.Sequence),
		sql.Named("time", a.Time.UTC().Format(time.RFC3339Nano)), sql.Named("type", a.Type), sql.Named("namespace", a.Namespace),
		sql.Named("resource", strings.TrimPrefix(a.Resource.Group+"/", "/")+a.Resource.Version+"/"+a.Resource.Resource),
		sql.Named("uid", a.UID()), sql.Named("version", a.ResourceVersion()), sql.Named("deleted", a.Type == consume.Deleted),
		sql.Named("object", cmp.Or(string(a.Object), fmt.Sprintf("from %s to %s: %s", a.From, a.To, a.Reason))),
		sql.Named("derived", a.Snapshot || a.Inferred), sql.Named("snapshot", a.SnapshotID), sql.Named("replayed", a.Replayed),
		sql.Named("stream", a.Stream), sql.Named("position", a.Position),
	}
}
