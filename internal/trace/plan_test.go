package trace

import (
	"database/sql"
	"testing"

	"glovebox/internal/store"
)

// TestAppendingLooksAtNoOtherRecord reads the programs that SQLite makes of the statements of a run, triggers included: none
// may walk a table of records, or each run would take longer than the one before.
func TestAppendingLooksAtNoOtherRecord(t *testing.T) {
	tr := newTrace(t, t.TempDir())
	for statement, walks := range map[string]int{
		"INSERT INTO records (seq, run, kind, time_ns, skeleton, root, signature) VALUES (9, 'r', 'run.end', 1, x'00', x'00', x'00')": 0,
		"INSERT INTO payloads (seq, salt, body) VALUES (9, x'00', x'00')":                                                             0,
		"INSERT INTO hashes (id, hash) VALUES (9, x'00')":                                                                             0,
		"UPDATE log SET size = 9, bytes = 9 WHERE id = 1":                                                                             0,
		"SELECT l.size, l.bytes, r.root, r.signature FROM log l LEFT JOIN records r ON r.seq = l.size WHERE l.id = 1":                 0,
		"SELECT h.id, h.hash FROM json_each('[1,2]') j CROSS JOIN hashes h ON h.id = j.value":                                         0,
		"UPDATE runs SET state = 'ended' WHERE id = 'r' AND state = 'running'":                                                        0,
		"SELECT state FROM runs WHERE id = 'r' AND tenant = 't'":                                                                      0,
	} {
		steps, found := 0, 0
		err := tr.store.View(t.Context(), func(tx *store.Tx) error {
			rows, err := tx.Query(t.Context(), "EXPLAIN "+statement)
			if err != nil {
				return err
			}
			defer rows.Close()
			for ; rows.Next(); steps++ {
				var addr, p1, p2, p3, p5 int
				var opcode string
				var p4, comment sql.NullString
				if err := rows.Scan(&addr, &opcode, &p1, &p2, &p3, &p4, &p5, &comment); err != nil {
					return err
				}
				if opcode == "Rewind" { // how a walk of a whole table begins
					found++
				}
			}
			return rows.Err()
		})
		if err != nil || steps == 0 || found != walks {
			t.Errorf("%s: %d steps with %d walks, want %d; %v", statement, steps, found, walks, err)
		}
	}
}
