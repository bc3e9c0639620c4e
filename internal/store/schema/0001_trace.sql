-- The record. A row is never changed and never removed, so that each can become a leaf of a log that proves it.
CREATE TABLE records (
  seq     INTEGER PRIMARY KEY AUTOINCREMENT,
  run     TEXT NOT NULL,
  kind    TEXT NOT NULL,
  time_ns INTEGER NOT NULL,
  body    BLOB NOT NULL,
  sha256  BLOB NOT NULL CHECK (length(sha256) = 32)
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

-- What the records say of each run, to find them by; all of it could be made again from the records.
CREATE TABLE runs (
  id          TEXT PRIMARY KEY,
  tenant      TEXT NOT NULL,
  state       TEXT NOT NULL CHECK (state IN ('running', 'ended', 'refused', 'interrupted')),
  status      TEXT NOT NULL DEFAULT '',
  started_ns  INTEGER NOT NULL,
  ended_ns    INTEGER NOT NULL DEFAULT 0,
  start_seq   INTEGER NOT NULL,
  end_seq     INTEGER NOT NULL DEFAULT 0,
  owner_pid   INTEGER NOT NULL DEFAULT 0,
  owner_start INTEGER NOT NULL DEFAULT 0,
  owner_boot  TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE INDEX runs_newest ON runs (tenant, start_seq);
CREATE INDEX runs_open ON runs (owner_boot, owner_pid, owner_start) WHERE state = 'running';

-- What a run printed, as far as it was kept: data holds it when it is small, else the blob named by sha256 does.
CREATE TABLE outputs (
  run    TEXT NOT NULL,
  stream TEXT NOT NULL,
  bytes  INTEGER NOT NULL,
  sha256 TEXT NOT NULL,
  data   BLOB,
  PRIMARY KEY (run, stream)
);

-- What a run left in /outputs. The blob named by sha256 holds the bytes.
CREATE TABLE artifacts (
  run        TEXT NOT NULL,
  path       TEXT NOT NULL,
  sha256     TEXT NOT NULL,
  bytes      INTEGER NOT NULL,
  media_type TEXT NOT NULL,
  PRIMARY KEY (run, path)
) WITHOUT ROWID;
