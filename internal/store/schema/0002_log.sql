-- The records that were written before there was a log wait here until they are sealed, once, as they are found.
DROP TRIGGER records_keep;
DROP TRIGGER records_stay;
DROP TRIGGER records_end_needs_start;
DROP INDEX records_once;
ALTER TABLE records RENAME TO found;

-- The log. A row is never changed and never removed. skeleton is the leaf: it says all that stays of a record for ever, and
-- commits to the payload. root and signature are the signed tree head of the first seq records.
CREATE TABLE records (
  seq       INTEGER PRIMARY KEY,
  run       TEXT NOT NULL,
  kind      TEXT NOT NULL,
  time_ns   INTEGER NOT NULL,
  skeleton  BLOB NOT NULL,
  root      BLOB NOT NULL CHECK (length(root) = 32),
  signature BLOB NOT NULL CHECK (length(signature) = 68)
);
CREATE UNIQUE INDEX records_once ON records (run, kind) WHERE kind IN ('run.start', 'run.end', 'run.refused');

CREATE TRIGGER records_keep BEFORE UPDATE ON records
BEGIN SELECT raise(ABORT, 'a record is never changed'); END;
CREATE TRIGGER records_stay BEFORE DELETE ON records
BEGIN SELECT raise(ABORT, 'a record is never removed'); END;
-- The words of the index stand in the question again, since that is how SQLite sees that the index answers it.
CREATE TRIGGER records_end_needs_start BEFORE INSERT ON records
WHEN new.kind = 'run.end' AND NOT EXISTS (SELECT 1 FROM records
  WHERE run = new.run AND kind = 'run.start' AND kind IN ('run.start', 'run.end', 'run.refused'))
BEGIN SELECT raise(ABORT, 'an end needs a start'); END;

-- What a record holds beyond its skeleton. Retention removes rows; nothing changes one.
CREATE TABLE payloads (
  seq  INTEGER PRIMARY KEY,
  salt BLOB NOT NULL,
  body BLOB NOT NULL
);
CREATE TRIGGER payloads_keep BEFORE UPDATE ON payloads
BEGIN SELECT raise(ABORT, 'a payload is never changed'); END;

-- The stored hashes of the tree over the skeletons, numbered as golang.org/x/mod/sumdb/tlog numbers them.
CREATE TABLE hashes (
  id   INTEGER PRIMARY KEY,
  hash BLOB NOT NULL CHECK (length(hash) = 32)
);
CREATE TRIGGER hashes_keep BEFORE UPDATE ON hashes
BEGIN SELECT raise(ABORT, 'a hash is never changed'); END;
CREATE TRIGGER hashes_stay BEFORE DELETE ON hashes
BEGIN SELECT raise(ABORT, 'a hash is never removed'); END;

-- The one row about the log as a whole: how many records it has, how many bytes of payloads, outputs and artifacts are kept,
-- and how many records wait to be sealed.
CREATE TABLE log (
  id    INTEGER PRIMARY KEY CHECK (id = 1),
  size  INTEGER NOT NULL,
  bytes INTEGER NOT NULL,
  found INTEGER NOT NULL
);
INSERT INTO log (id, size, bytes, found) SELECT 1, 0, 0, count(*) FROM found;

ALTER TABLE runs ADD COLUMN erased_ns INTEGER NOT NULL DEFAULT 0;
CREATE INDEX runs_kept ON runs (ended_ns) WHERE erased_ns = 0 AND state <> 'running';

-- Blobs that an erased run named. Each is removed when nothing else names it.
CREATE TABLE unnamed (sha256 TEXT PRIMARY KEY) WITHOUT ROWID;
CREATE INDEX outputs_blob ON outputs (sha256) WHERE data IS NULL;
CREATE INDEX artifacts_blob ON artifacts (sha256);
