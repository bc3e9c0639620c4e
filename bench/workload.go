package bench

import (
	"fmt"
	"slices"
	"strings"
)

// workload is a program with the output that it must have.
type workload struct {
	name, lang string
	code, want string
	needs      string // a module of Python's that must be there
	share      int    // it is run once in so many rounds
}

func (j workload) title() string { return j.lang + " " + j.name }

// workloads are the programs. Those that something must be reached with come first, since time may run out. What they
// compute is computed here too, in another language, so that an interpreter that is wrong in every sandbox alike is found
// out.
func workloads() []workload {
	csv := csvWant()
	return []workload{
		{name: "print", lang: "python", code: "print(1)", want: "1\n", share: 1},
		{name: "pandas", lang: "python", code: pandasPython, want: pandasWant(), needs: "pandas", share: 4},
		{name: "csv", lang: "python", code: csvPython, want: csv, share: 2},
		{name: "print", lang: "node", code: "console.log(1)", want: "1\n", share: 2},
		{name: "print", lang: "bash", code: "echo 1", want: "1\n", share: 2},
		{name: "csv", lang: "node", code: csvNode, want: csv, share: 4},
		{name: "csv", lang: "bash", code: csvBash, want: csv, share: 4},
	}
}

// rows is how many rows the workloads on tables have.
const rows = 10_000

// The workloads on tables make their rows themselves, from a generator that every language computes exactly (Lehmer's, whose
// products stay below 2^53), so that no input has to be handed in, which each subject does in its own way.

const csvPython = `import csv, io
state, text = 1, io.StringIO(newline="")
table = csv.writer(text)
table.writerow(["id", "shop", "amount"])
for i in range(10000):
    state = state * 16807 % 2147483647
    table.writerow([i, "shop%d" % (state % 10), state // 10 % 1000])
text.seek(0)
total = {}
for row in csv.DictReader(text):
    total[row["shop"]] = total.get(row["shop"], 0) + int(row["amount"])
for shop in sorted(total):
    print(shop, total[shop])
`

const csvNode = `let state = 1
const lines = ["id,shop,amount"]
for (let i = 0; i < 10000; i++) {
  state = state * 16807 % 2147483647
  lines.push(i + ",shop" + state % 10 + "," + Math.floor(state / 10) % 1000)
}
const total = {}
for (const line of lines.join("\n").split("\n").slice(1)) {
  const [, shop, amount] = line.split(",")
  total[shop] = (total[shop] || 0) + Number(amount)
}
for (const shop of Object.keys(total).sort()) console.log(shop + " " + total[shop])
`

const csvBash = `awk 'BEGIN { s = 1; for (i = 0; i < 10000; i++) { s = s * 16807 % 2147483647
  printf "%d,shop%d,%d\n", i, s % 10, int(s / 10) % 1000 } }' |
awk -F, '{ total[$2] += $3 } END { for (shop in total) print shop, total[shop] }' | sort
`

func csvWant() string {
	total := map[string]int{}
	state := 1
	for range rows {
		state = state * 16807 % 2147483647
		total[fmt.Sprintf("shop%d", state%10)] += state / 10 % 1000
	}
	var lines []string
	for shop, sum := range total {
		lines = append(lines, fmt.Sprintf("%s %d\n", shop, sum))
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}

const pandasPython = `import numpy, pandas
state = numpy.arange(10000, dtype="int64") * 2654435761 % 4294967296
table = pandas.DataFrame({"shop": state // 65536 % 10, "amount": state % 1000})
for shop, row in table.groupby("shop")["amount"].agg(["sum", "count", "max"]).iterrows():
    print(shop, row["sum"], row["count"], row["max"])
`

func pandasWant() string {
	var sum, count, most [10]int
	for i := range rows {
		state := i * 2654435761 % 4294967296
		shop, amount := state/65536%10, state%1000
		sum[shop] += amount
		count[shop]++
		most[shop] = max(most[shop], amount)
	}
	var b strings.Builder
	for shop := range 10 {
		fmt.Fprintln(&b, shop, sum[shop], count[shop], most[shop])
	}
	return b.String()
}
