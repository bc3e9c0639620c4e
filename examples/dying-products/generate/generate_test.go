package main

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The data is part of the sample: the answer in expected.txt holds for these bytes.
const salesSHA256 = "250ecd772964d2a0aa48064562986e55100bfef25c0b29798aa2f4168df19f73"

func generated(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := generate(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestSalesAreTheSameEverywhere(t *testing.T) {
	sales, err := os.ReadFile(filepath.Join(generated(t), "sales.csv"))
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(sales), "\n"); n < 200_000 {
		t.Errorf("%d lines", n)
	}
	sum := sha256.Sum256(sales)
	if got := hex.EncodeToString(sum[:]); got != salesSHA256 {
		t.Errorf("sales.csv is %s, want %s", got, salesSHA256)
	}
}

// analysis runs the sample's own program, which is ours, without a sandbox.
func analysis(t *testing.T, in string) (answer string, rows []string) {
	t.Helper()
	python := "/usr/bin/python3"
	if _, err := os.Stat(python); err != nil {
		if python, err = exec.LookPath("python3"); err != nil {
			if os.Getenv("GLOVEBOX_TEST_ROOT") != "" {
				t.Fatal("python3 is promised and missing")
			}
			t.Skip("needs python3")
		}
	}
	out := t.TempDir()
	cmd := exec.Command(python, filepath.Join("..", "analyse.py"), in, out)
	cmd.Stderr = os.Stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(filepath.Join(out, "dying.csv"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text), strings.Split(strings.TrimSpace(string(table)), "\n")
}

func TestAnalysisFindsWhatDies(t *testing.T) {
	answer, rows := analysis(t, generated(t))
	want, err := os.ReadFile(filepath.Join("..", "expected.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), answer); d != "" {
		t.Error(d)
	}
	var made, found []string
	for name, s := range stories {
		if s == dying {
			made = append(made, name)
		}
	}
	for _, row := range rows[1:] {
		name, _, _ := strings.Cut(row, ",")
		found = append(found, name)
	}
	slices.Sort(made)
	slices.Sort(found)
	if d := cmp.Diff(made, found); d != "" {
		t.Error(d)
	}
}

func TestPounds(t *testing.T) {
	for pence, want := range map[int]string{
		5: "0.05", 1999: "19.99", 99999: "999.99", 100000: "1,000.00", 1234567: "12,345.67",
	} {
		if got := pounds(pence); got != want {
			t.Errorf("%d: got %s, want %s", pence, got, want)
		}
	}
}

// Every story must be told of a product that exists, or the data would lack it unnoticed.
func TestStoriesAreOfProducts(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range names {
		for _, n := range c.names {
			if seen[n] {
				t.Errorf("%s is there twice", n)
			}
			seen[n] = true
		}
	}
	for name := range stories {
		if !seen[name] {
			t.Errorf("no product is called %s", name)
		}
	}
}
