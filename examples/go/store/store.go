// Package store keeps, in SQLite, a table of what exists in the clusters and a log of what happened.
package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	_ "modernc.org/sqlite" // the driver

	"github.com/kubeferry/kubeferry/consume"
)

// schema: a deleted object keeps its row, so that a late repetition does not bring it back. stream and position are where its last
// record stood. Each change is in the log once; read it in the order of subject and sequence, since some transports deliver late.
const schema = `
CREATE TABLE IF NOT EXISTS objects (
  cluster TEXT, subject TEXT, resource TEXT, namespace TEXT, uid TEXT, version TEXT,
  sequence TEXT, deleted INTEGER, object TEXT, stream INTEGER, position INTEGER,
  PRIMARY KEY (cluster, subject));
CREATE TABLE IF NOT EXISTS log (
  n INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, cluster TEXT, subject TEXT, sequence TEXT, type TEXT, data TEXT);
CREATE TABLE IF NOT EXISTS snapshots (
  stream INTEGER, cluster TEXT, resource TEXT, namespace TEXT, name TEXT, position INTEGER, done INTEGER,
  PRIMARY KEY (stream, cluster, resource, namespace));`

// upsert changes the row of an object only if the record is newer than what is there.
const upsert = `
INSERT INTO objects (cluster, subject, resource, namespace, uid, version, sequence, deleted, object, stream, position)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (cluster, subject) DO UPDATE SET uid = excluded.uid, version = excluded.version, sequence = excluded.sequence,
  deleted = excluded.deleted, object = excluded.object, stream = excluded.stream, position = excluded.position
WHERE excluded.sequence > objects.sequence OR excluded.sequence = ''
  OR excluded.sequence = objects.sequence AND excluded.deleted > objects.deleted`

const (
	seen   = `UPDATE objects SET stream = ?, position = ? WHERE cluster = ? AND subject = ? AND (stream <> ? OR position < ?)`
	record = `INSERT OR IGNORE INTO log (id, cluster, subject, sequence, type, data) VALUES (?, ?, ?, ?, ?, ?)`

	// begin leaves a snapshot that is known as it is, since its mark may be repeated.
	begin = `
INSERT INTO snapshots VALUES (?, ?, ?, ?, ?, ?, 0)
ON CONFLICT DO UPDATE SET name = excluded.name, position = excluded.position, done = 0
WHERE excluded.name <> snapshots.name AND excluded.position > snapshots.position`
	end = `
UPDATE snapshots SET done = 1 WHERE stream = ? AND cluster = ? AND resource = ? AND namespace = ? AND name = ? AND NOT done
RETURNING position`
	// sweep removes what a complete snapshot has not shown.
	sweep = `
DELETE FROM objects WHERE stream = ? AND cluster = ? AND resource = ? AND (namespace = ? OR ? = '') AND position < ? AND NOT deleted`
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

// Last returns the highest position that is stored, for receivers that number what arrives.
func (s *Store) Last(ctx context.Context) (position int64, err error) {
	const last = `SELECT max((SELECT coalesce(max(position), 0) FROM objects), (SELECT coalesce(max(position), 0) FROM snapshots))`
	return position, s.db.QueryRowContext(ctx, last).Scan(&position)
}

// Apply stores what arrived in one transaction. Once it returns nil the records may be acknowledged.
func (s *Store) Apply(ctx context.Context, arrivals []Arrival) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // of nothing, once it is committed
	for _, a := range arrivals {
		switch {
		case a.IsChange():
			err = change(ctx, tx, a)
		case a.Type == consume.Mark:
			err = mark(ctx, tx, a)
		case a.Type == consume.Gap:
			data := fmt.Sprintf("from %s to %s: %s", a.From, a.To, a.Reason)
			_, err = tx.ExecContext(ctx, record, a.ID, a.Cluster, a.Subject, a.Sequence, a.Type, data)
		}
		if err != nil {
			return err
		}
	}
	return tx.Commit()
}

func change(ctx context.Context, tx *sql.Tx, a Arrival) error {
	var object struct {
		Metadata struct{ UID, ResourceVersion string }
	}
	if err := json.Unmarshal(a.Object, &object); err != nil {
		return err
	}
	result, err := tx.ExecContext(ctx, upsert, a.Cluster, a.Subject, resource(a), a.Namespace, object.Metadata.UID, object.Metadata.ResourceVersion,
		a.Sequence, a.Type == consume.Deleted, string(a.Object), a.Stream, a.Position)
	if err != nil {
		return err
	}
	newer, err := result.RowsAffected()
	if err == nil && newer == 0 { // the object exists nevertheless, which counts between the marks of a snapshot
		_, err = tx.ExecContext(ctx, seen, a.Stream, a.Position, a.Cluster, a.Subject, a.Stream, a.Position)
	}
	// What was worked out from a list, or is of a snapshot, is no change where the state was known.
	if err == nil && (newer > 0 || !a.Snapshot && !a.Inferred) {
		_, err = tx.ExecContext(ctx, record, a.ID, a.Cluster, a.Subject, a.Sequence, a.Type, string(a.Object))
	}
	return err
}

func mark(ctx context.Context, tx *sql.Tx, a Arrival) error {
	if a.Phase == consume.Started {
		_, err := tx.ExecContext(ctx, begin, a.Stream, a.Cluster, resource(a), a.Namespace, a.SnapshotID, a.Position)
		return err
	}
	var begun int64
	err := tx.QueryRowContext(ctx, end, a.Stream, a.Cluster, resource(a), a.Namespace, a.SnapshotID).Scan(&begun)
	if errors.Is(err, sql.ErrNoRows) { // it is not known, or ended before
		return nil
	}
	if err != nil || !a.Complete {
		return err
	}
	_, err = tx.ExecContext(ctx, sweep, a.Stream, a.Cluster, resource(a), a.Namespace, a.Namespace, begun)
	return err
}

func resource(a Arrival) string {
	return strings.TrimPrefix(a.Resource.Group+"/", "/") + a.Resource.Version + "/" + a.Resource.Resource
}
