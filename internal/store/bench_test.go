package store

import (
	"bytes"
	"context"
	"testing"
)

func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	s, err := Open(Config{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s, err := Open(Config{Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

func BenchmarkCloseAfterOneUpdate(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		b.StopTimer()
		s, err := Open(Config{Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Update(b.Context(), addRecord("r", "note")); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUpdate(b *testing.B) {
	s, err := Open(Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for b.Loop() {
		if err := s.Update(b.Context(), addRecord("r", "note")); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUpdateTogether(b *testing.B) {
	s, err := Open(Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	b.SetParallelism(16)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := s.Update(b.Context(), addRecord("r", "note")); err != nil {
				b.Error(err)
			}
		}
	})
}

func BenchmarkPut(b *testing.B) {
	s, err := Open(Config{Dir: b.TempDir()})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	content := bytes.Repeat([]byte("x"), 100<<10)
	for i := 0; b.Loop(); i++ {
		content[0], content[1], content[2] = byte(i), byte(i>>8), byte(i>>16)
		if _, _, err := s.Put(bytes.NewReader(content)); err != nil {
			b.Fatal(err)
		}
	}
}

// addRecord inserts one record.
func addRecord(run, kind string) func(context.Context, *Tx) error {
	return func(ctx context.Context, tx *Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO records (run, kind, time_ns, skeleton, root, signature)
			VALUES (?, ?, 1, x'7b7d', zeroblob(32), zeroblob(68))`,
			run, kind)
		return err
	}
}
