package trace

import (
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"golang.org/x/mod/sumdb/tlog"

	"glovebox"
	"glovebox/internal/store"
)

// record is one leaf of the log with what it commits to.
type record struct {
	skeleton   skeleton
	leaf       []byte // the skeleton as it is spelt
	salt, body []byte // nil: it has no payload

	seq  int64 // once appended, like the rest
	head head
}

// ref is what a Result says of its end.
func (r *record) ref(err error) glovebox.TraceRef {
	if err != nil {
		return glovebox.TraceRef{}
	}
	return r.head.ref()
}

// head is a signed tree head: what the first size records are, and who says so.
type head struct {
	size      int64
	root      tlog.Hash
	signature string // signatureBytes long
}

// appended is what this process appended last: perhaps in vain, so that it counts only while the top of the log is its head.
type appended struct {
	head    head
	hashes  frontier // of the log up to it
	version int64    // of the store
}

// origin names this kind of log in what is signed and in keys.
const origin = "glovebox/trace"

// signatureBytes is the length of a signature: four bytes tell the key, sixty-four are ed25519's.
const signatureBytes = 4 + 64

// text is what is signed: a checkpoint as transparency logs write it (C2SP tlog-checkpoint).
func (h head) text() []byte {
	return fmt.Appendf(nil, "%s\n%d\n%s\n", origin, h.size, base64.StdEncoding.EncodeToString(h.root[:]))
}

// ref spells a head as one word: the root in hex, a dot, and the signature in the alphabet of base64 that is safe in URLs.
func (h head) ref() glovebox.TraceRef {
	return glovebox.TraceRef{Seq: h.size,
		Hash: hex.EncodeToString(h.root[:]) + "." + base64.RawURLEncoding.EncodeToString([]byte(h.signature))}
}

// parseHead reads what ref spells.
func parseHead(ref glovebox.TraceRef) (head, error) {
	root, signature, _ := strings.Cut(ref.Hash, ".")
	h := head{size: ref.Seq}
	r, err := hex.DecodeString(root)
	s, err2 := base64.RawURLEncoding.DecodeString(signature)
	if errors.Join(err, err2) != nil || len(r) != len(h.root) || len(s) != signatureBytes || ref.Seq < 1 {
		return h, glovebox.Errorf(glovebox.CodeInvalid, "say SEQ:HASH with trace.seq and trace.hash exactly as a result has them",
			"%q is no tree head", beginning(fmt.Sprint(ref.Seq, ":", ref.Hash), 256))
	}
	h.root, h.signature = tlog.Hash(r), string(s)
	return h, nil
}

// sign makes the signature of a head.
func (k *key) sign(h *head) error {
	s, err := k.signer.Sign(h.text())
	if err == nil {
		h.signature = string(append(binary.BigEndian.AppendUint32(nil, k.signer.KeyHash()), s...))
	}
	return err
}

// signed reports whether the key made the head's signature, and whether it is of this key at all. To sign again and compare
// is to verify, since ed25519 makes one signature of a text, and takes half the time.
func (k *key) signed(h head) (good, mine bool) {
	again := head{size: h.size, root: h.root}
	err := k.sign(&again)
	mine = len(h.signature) == signatureBytes && binary.BigEndian.Uint32([]byte(h.signature)) == k.signer.KeyHash()
	return err == nil && again.signature == h.signature, mine
}

// errBroken is that nothing can be appended to the log as it is: it would be signed on top of what was tampered with.
var errBroken = errors.New("the log of the trace does not hold")

// append adds the record to the log within the one write transaction: seals it on top of what is there, which must be what
// was signed. It reads one row and one stored hash for each bit of the log's size; the hashes only where somebody else may
// have written since its own last record. beside is how many bytes the run keeps besides the payload.
func (t *Trace) append(ctx context.Context, tx *store.Tx, r *record, beside int64) error {
	k, err := t.keys.get()
	if err != nil {
		return err
	}
	top, bytes, found, err := readTop(ctx, tx)
	if err == nil && found > 0 {
		if err = t.adoptAll(ctx, tx); err == nil {
			top, bytes, _, err = readTop(ctx, tx)
		}
	}
	if err != nil {
		return err
	}
	version, err := tx.Version(ctx)
	if err != nil {
		return err
	}
	hashes := frontier{}
	if last := t.last.Load(); last != nil && last.head == top && last.version == version {
		maps.Copy(hashes, last.hashes)
	} else {
		if hashes, err = readFrontier(ctx, tx, top.size); err != nil {
			return err
		}
		if err := t.check(k, top, hashes); err != nil {
			return err
		}
	}
	added, err := tlog.StoredHashesForRecordHash(top.size, tlog.RecordHash(r.leaf), hashes)
	if err != nil {
		return err
	}
	first := tlog.StoredHashIndex(0, top.size)
	for i, h := range added {
		hashes[first+int64(i)] = h
	}
	r.seq, r.head.size = top.size+1, top.size+1
	if r.head.root, err = tlog.TreeHash(r.seq, hashes); err != nil {
		return err
	}
	if err := k.sign(&r.head); err != nil {
		return err
	}
	if err := r.insert(ctx, tx, first, added, bytes+beside+int64(len(r.body))); err != nil {
		return err
	}
	t.last.Store(&appended{r.head, hashes.of(r.seq), version})
	return nil
}

// check is that the top of the log is what was signed. A head of this process's own needs no look at its signature.
func (t *Trace) check(k *key, top head, hashes frontier) error {
	if top.size == 0 {
		return nil
	}
	root, err := tlog.TreeHash(top.size, hashes)
	if err != nil {
		return fmt.Errorf("%w: %w", errBroken, err)
	}
	if root != top.root {
		return fmt.Errorf("%w: the stored hashes of %d records do not make the root that was signed", errBroken, top.size)
	}
	if last := t.last.Load(); last != nil && last.head == top {
		return nil
	}
	switch good, mine := k.signed(top); {
	case !mine:
		return keyError(t.keys.path, errOtherKey)
	case !good:
		return fmt.Errorf("%w: the signature of record %d is forged", errBroken, top.size)
	}
	return nil
}

func (r *record) insert(ctx context.Context, tx *store.Tx, first int64, added []tlog.Hash, bytes int64) error {
	s := &r.skeleton
	_, err := tx.Exec(ctx, `INSERT INTO records (seq, run, kind, time_ns, skeleton, root, signature)
		VALUES (?, ?, ?, ?, ?, ?, ?)`,
		r.seq, s.Run, s.Kind, s.Time.UnixNano(), r.leaf, r.head.root[:], []byte(r.head.signature))
	if err != nil {
		return err
	}
	if r.body != nil {
		if _, err := tx.Exec(ctx, "INSERT INTO payloads (seq, salt, body) VALUES (?, ?, ?)", r.seq, r.salt, r.body); err != nil {
			return err
		}
	}
	for i := range added {
		if _, err := tx.Exec(ctx, "INSERT INTO hashes (id, hash) VALUES (?, ?)", first+int64(i), added[i][:]); err != nil {
			return err
		}
	}
	_, err = tx.Exec(ctx, "UPDATE log SET size = ?, bytes = ? WHERE id = 1", r.seq, bytes)
	return err
}

// readTop reads the newest head, how many bytes are kept, and how many records wait to be adopted.
func readTop(ctx context.Context, tx *store.Tx) (top head, bytes, found int64, err error) {
	var root, signature []byte
	err = tx.QueryRow(ctx, `SELECT l.size, l.bytes, l.found, r.root, r.signature
		FROM log l LEFT JOIN records r ON r.seq = l.size WHERE l.id = 1`).Scan(&top.size, &bytes, &found, &root, &signature)
	if errors.Is(err, sql.ErrNoRows) {
		return top, 0, 0, fmt.Errorf("%w: its size is not told", errBroken)
	}
	if err != nil || top.size == 0 {
		return top, bytes, found, err
	}
	if top.size < 0 || len(root) != len(top.root) {
		return top, 0, 0, fmt.Errorf("%w: record %d is missing", errBroken, top.size)
	}
	top.root, top.signature = tlog.Hash(root), string(signature)
	return top, bytes, found, nil
}

// frontier holds stored hashes by their number: those of the complete trees that a log consists of, one for each bit of its
// size, and those that are added.
type frontier map[int64]tlog.Hash

// ReadHashes implements tlog.HashReader.
func (f frontier) ReadHashes(ids []int64) ([]tlog.Hash, error) {
	hashes := make([]tlog.Hash, len(ids))
	for i, id := range ids {
		h, ok := f[id]
		if !ok {
			return nil, fmt.Errorf("%w: the stored hash %d is missing", errBroken, id)
		}
		hashes[i] = h
	}
	return hashes, nil
}

// of are those of the hashes that a log of size records consists of.
func (f frontier) of(size int64) frontier {
	out := frontier{}
	for _, id := range frontierOf(size) {
		out[id] = f[id]
	}
	return out
}

// frontierOf lists the numbers of the hashes that a log of size records consists of.
func frontierOf(size int64) []int64 {
	ids := []int64{}
	for level := 62; level >= 0; level-- {
		if n := size >> level; n&1 == 1 {
			ids = append(ids, tlog.StoredHashIndex(level, n-1))
		}
	}
	return ids
}

func readFrontier(ctx context.Context, tx *store.Tx, size int64) (frontier, error) {
	f := frontier{}
	ids, err := json.Marshal(frontierOf(size))
	if err != nil || size == 0 {
		return f, err
	}
	// CROSS JOIN keeps the order of the two: a look into the table for each number, never a walk of it.
	rows, err := tx.Query(ctx, "SELECT h.id, h.hash FROM json_each(?) j CROSS JOIN hashes h ON h.id = j.value", string(ids))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var id int64
		var hash []byte
		if err := rows.Scan(&id, &hash); err != nil {
			return nil, err
		}
		if len(hash) == tlog.HashSize {
			f[id] = tlog.Hash(hash)
		}
	}
	return f, rows.Err()
}
