// Command generate writes the data of the sample task: two years of sales of a chain of shops, with the dirt that such data
// has, and a workbook of stock. The same bytes of sales.csv come out on every machine: all of it is integer arithmetic on a
// fixed seed.
//
//	go run ./examples/dying-products/generate FOLDER
package main

import (
	"bufio"
	"encoding/csv"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/xuri/excelize/v2"
)

// The days that the data covers, and the one on which dying products begin to fall.
var (
	first   = time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC)
	decline = time.Date(2025, 7, 1, 0, 0, 0, 0, time.UTC)
	last    = time.Date(2025, 12, 31, 0, 0, 0, 0, time.UTC)
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: generate FOLDER")
		os.Exit(2)
	}
	if err := generate(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

// generate writes sales.csv and stock.xlsx into dir, which exists.
func generate(dir string) error {
	r := &random{rand.NewPCG(20251231, 7)}
	products := catalogue(r)
	f, err := os.Create(filepath.Join(dir, "sales.csv"))
	if err != nil {
		return fmt.Errorf("create sales: %w", err)
	}
	defer f.Close()
	if err := writeSales(f, products, r); err != nil {
		return fmt.Errorf("write sales: %w", err)
	}
	if err := f.Close(); err != nil {
		return fmt.Errorf("close sales: %w", err)
	}
	if err := writeStock(filepath.Join(dir, "stock.xlsx"), products, r); err != nil {
		return fmt.Errorf("write stock: %w", err)
	}
	return nil
}

// random draws whole numbers, the same on every machine: the sequence of PCG is fixed, what is built on it in the standard
// library need not be.
type random struct{ *rand.PCG }

func (r *random) below(n int) int { return int(r.Uint64() % uint64(n)) }

func (r *random) chance(n, of int) bool { return r.below(of) < n }

func writeSales(w io.Writer, products []product, r *random) error {
	buffered := bufio.NewWriterSize(w, 1<<20)
	out := csv.NewWriter(buffered)
	if err := out.Write([]string{"date", "store", "product", "units", "unit_price"}); err != nil {
		return err
	}
	for day := first; !day.After(last); day = day.AddDate(0, 0, 1) {
		for _, store := range stores {
			for _, p := range products {
				if !r.chance(p.demand*factor(p.story, day)/1000, 1000) {
					continue
				}
				if err := out.Write(sale(day, store, p, r)); err != nil {
					return err
				}
			}
		}
	}
	out.Flush()
	if err := out.Error(); err != nil {
		return err
	}
	return buffered.Flush()
}

// factor is how well a product sells on a day, in thousandths of its usual demand.
func factor(s story, day time.Time) int {
	f := 1000
	switch s {
	case dying:
		if n := days(decline, day); n > 0 {
			f = 1000 - 985*n/days(decline, last)
		}
	case summer:
		f = season[day.Month()-1]
	case winter:
		f = season[(day.Month()+5)%12]
	case gap:
		if n := days(time.Date(2025, 9, 25, 0, 0, 0, 0, time.UTC), day); n >= 0 && n < 49 {
			f = 0
		}
	case fad:
		if n := days(time.Date(2025, 3, 1, 0, 0, 0, 0, time.UTC), day); n >= 0 && n < 90 {
			f = 3500
		}
	case launched:
		if day.Year() < last.Year() {
			f = 0
		}
	case gone:
		if days(time.Date(2024, 10, 1, 0, 0, 0, 0, time.UTC), day) >= 0 {
			f = 0
		}
	}
	if w := day.Weekday(); w == time.Saturday || w == time.Sunday {
		f = f * 13 / 10
	}
	return f
}

func days(from, to time.Time) int { return int(to.Sub(from) / (24 * time.Hour)) }

// sale is one line of sales.csv, as dirty as tills and people make it.
func sale(day time.Time, store string, p product, r *random) []string {
	date := day.Format(time.DateOnly)
	if store == slashDates {
		date = day.Format("02/01/2006")
	}
	units := 1
	for units < 6 && r.chance(40, 100) {
		units++
	}
	if r.chance(1, 100) {
		units = -1 // brought back
	}
	count := strconv.Itoa(units)
	if r.chance(3, 1000) {
		count = ""
	}
	price := pounds(p.price)
	if r.chance(5, 1000) {
		price = ""
	}
	return []string{date, store, untidy(p.name, r), count, price}
}

// untidy spells a name as people do.
func untidy(name string, r *random) string {
	switch n := r.below(100); {
	case n < 3:
		return strings.ToUpper(name)
	case n < 5:
		return strings.ToLower(name)
	case n < 6:
		return name + " "
	case n < 7:
		return strings.ReplaceAll(name, " ", "  ")
	}
	return name
}

func pounds(pence int) string {
	whole := strconv.Itoa(pence / 100)
	if pence >= separator {
		whole = whole[:len(whole)-3] + "," + whole[len(whole)-3:]
	}
	return fmt.Sprintf("%s.%02d", whole, pence%100)
}

// writeStock makes the workbook: a sheet of products and a sheet of what each store has.
func writeStock(file string, products []product, r *random) error {
	book := excelize.NewFile()
	defer book.Close()
	if err := book.SetSheetName("Sheet1", "Products"); err != nil {
		return err
	}
	if _, err := book.NewSheet("Stock"); err != nil {
		return err
	}
	rows := [][]any{{"product", "category", "unit_cost", "note"}}
	for _, p := range products {
		rows = append(rows, []any{p.name, p.category, float64(p.price*6/10) / 100, ""})
	}
	if err := writeSheet(book, "Products", rows); err != nil {
		return err
	}
	rows = [][]any{{"store", "product", "on_hand", "counted"}}
	for _, store := range stores {
		for _, p := range products {
			onHand := any(r.below(40))
			if p.story == dying {
				onHand = 30 + r.below(60) // ordered as if nothing had changed
			}
			if r.chance(2, 100) {
				onHand = nil // nobody counted
			}
			rows = append(rows, []any{store, untidy(p.name, r), onHand, last.Format(time.DateOnly)})
		}
	}
	if err := writeSheet(book, "Stock", rows); err != nil {
		return err
	}
	return book.SaveAs(file)
}

func writeSheet(book *excelize.File, sheet string, rows [][]any) error {
	for i, row := range rows {
		cell, err := excelize.CoordinatesToCellName(1, i+1)
		if err != nil {
			return err
		}
		if err := book.SetSheetRow(sheet, cell, &row); err != nil {
			return err
		}
	}
	return nil
}
