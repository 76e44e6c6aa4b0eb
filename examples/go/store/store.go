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
	// schema: objects has the highest record of each object, marks the highest complete mark, and the view existing is what exists.
	schema = `
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
  UNIQUE (pipeline, id));`
	// record changes the row of an object if the record is above what is there.
	record = `
INSERT INTO objects (cluster, pipeline, subject, resource, namespace, uid, version, sequence, deleted, snapshot_sequence, object)
VALUES (:cluster, :pipeline, :subject, :resource, :namespace, :uid, :version, :sequence, :deleted, :snapshot_sequence, :object)
ON CONFLICT (cluster, pipeline, subject) DO UPDATE SET uid = excluded.uid, version = excluded.version, sequence = excluded.sequence,
  deleted = excluded.deleted, snapshot_sequence = excluded.snapshot_sequence, object = excluded.object
WHERE (excluded.sequence, excluded.deleted, excluded.snapshot_sequence) > (objects.sequence, objects.deleted, objects.snapshot_sequence)`
	// mark changes the mark of a snapshot if this one is higher.
	mark = `
INSERT INTO marks (cluster, pipeline, resource, namespace, snapshot_sequence)
VALUES (:cluster, :pipeline, :resource, :namespace, :snapshot_sequence)
ON CONFLICT (cluster, pipeline, resource, namespace) DO UPDATE SET snapshot_sequence = excluded.snapshot_sequence
WHERE excluded.snapshot_sequence > marks.snapshot_sequence`
	// note takes each change and each gap once. A record of a snapshot is a baseline: it says what existed, and not what happened.
	note = `
INSERT INTO log (id, cluster, pipeline, subject, sequence, time, type, baseline, inferred, data)
VALUES (:id, :cluster, :pipeline, :subject, :sequence, :time, :type, :baseline, :inferred, :object)
ON CONFLICT (pipeline, id) DO NOTHING`
)

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

// Apply stores records in one transaction. Once it returns nil they may be acknowledged.
func (s *Store) Apply(ctx context.Context, records []consume.Record) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // of nothing, once it is committed
	for _, r := range records {
		for _, statement := range statements(&r) {
			if _, err := tx.ExecContext(ctx, statement, row(&r)...); err != nil {
				return fmt.Errorf("store %s: %w", r.ID, err)
			}
		}
	}
	return tx.Commit()
}

// statements returns what a record changes: nothing if it is of a later version of kubeferry, or a mark from which nothing follows.
func statements(r *consume.Record) []string {
	switch {
	case r.IsChange():
		return []string{record, note}
	case r.Type == consume.Gap:
		return []string{note}
	case r.Type == consume.Mark && r.Complete:
		return []string{mark}
	}
	return nil
}

// row has the values of all statements.
func row(r *consume.Record) []any {
	return []any{
		sql.Named("id", r.ID), sql.Named("cluster", r.Cluster), sql.Named("pipeline", r.Pipeline), sql.Named("subject", r.Subject),
		sql.Named("resource", strings.TrimPrefix(r.Resource.Group+"/", "/")+r.Resource.Version+"/"+r.Resource.Resource),
		sql.Named("namespace", r.Namespace), sql.Named("uid", r.UID()), sql.Named("version", r.ResourceVersion()),
		sql.Named("sequence", r.Sequence), sql.Named("deleted", r.Type == consume.Deleted), sql.Named("snapshot_sequence", r.SnapshotSequence),
		sql.Named("time", r.Time.Format(time.RFC3339Nano)), sql.Named("type", r.Type), sql.Named("baseline", r.Snapshot), sql.Named("inferred", r.Inferred),
		sql.Named("object", cmp.Or(string(r.Object), fmt.Sprintf("from %s to %s: %s", r.From, r.To, r.Reason))),
	}
}
