#!/bin/sh
# demo.sh: the sample task, then a hostile program, then the record of both. Needs what `make build` leaves in bin/.
# Everything it makes is in temporary folders that are removed at the end. Fails when the answer is wrong, or when the
# hostile program gets through or is not ended at its memory limit.
set -eu
cd "$(dirname "$0")/.."
example=examples/dying-products

work=$(mktemp -d)
canary=$(mktemp "${HOME:-/tmp}/.glovebox-demo-XXXXXX")
trap 'rm -rf "$work" "$canary"' EXIT
trap 'exit 130' INT TERM HUP
echo "a secret in the caller's home" >"$canary"
mkdir "$work/in"
echo "data_dir: $work/data" >"$work/glovebox.yaml"

glovebox() { bin/glovebox --config "$work/glovebox.yaml" "$@"; }
heading() { printf '\n\033[1m== %s\033[0m\n' "$*" | if [ -t 1 ]; then cat; else sed 's/\x1b\[[0-9;]*m//g'; fi; }
fail() { echo "demo.sh: $*" >&2; exit 1; }
# code COMMAND...: runs it and keeps its exit code in rc.
code() { rc=0; "$@" || rc=$?; }

heading "The task: two years of sales and a workbook of stock. Which products are dying?"
go run "./$example/generate" "$work/in"
ls -l "$work/in" | awk 'NR > 1 { printf "  %-12s %9d bytes\n", $NF, $5 }'

heading "Running $example/analyse.py, as a model would have written it"
echo '$ glovebox run --trust model --input sales.csv --input stock.xlsx --output answer analyse.py'
code glovebox run --quiet --trust model --input "$work/in/sales.csv" --input "$work/in/stock.xlsx" --output "$work/answer" \
	"$example/analyse.py" >"$work/answer.txt"
cat "$work/answer.txt"
[ "$rc" = 0 ] || fail "the analysis ended with exit code $rc"
cmp -s "$work/answer.txt" "$example/expected.txt" || fail "the answer is not the one in $example/expected.txt"
[ -s "$work/answer/dying.csv" ] || fail "dying.csv was not collected"
echo "-> right: it is the known answer; collected: answer/dying.csv, $(wc -l <"$work/answer/dying.csv" | tr -d ' ') lines"

heading "Running $example/hostile.py with 128 MiB of memory"
echo '$ glovebox run --trust model --memory 128MiB hostile.py -- CANARY'
code glovebox run --quiet --trust model --memory 128MiB "$example/hostile.py" -- "$canary" \
	>"$work/hostile.txt" 2>"$work/why.txt"
cat "$work/hostile.txt" "$work/why.txt"
[ "$rc" != 126 ] || fail "glovebox refused to start it"
grep -q '^attempts that got through: 0$' "$work/hostile.txt" || fail "not every attempt was refused"
[ "$rc" = 137 ] || fail "the hostile program ended with exit code $rc, not 137 (memory limit)"
echo "-> every attempt refused, then ended at its memory limit: exit code $rc"

heading "What the trace says of both"
glovebox trace ls
for id in $(glovebox trace ls | grep -o 'run_[A-Za-z0-9]*' | sort -u); do
	heading "glovebox trace show $id"
	glovebox trace show "$id" >"$work/show.txt"
	sed -n '1,32p' "$work/show.txt"
	lines=$(wc -l <"$work/show.txt")
	[ "$lines" -le 32 ] || echo "  ($((lines - 32)) more lines)"
done
