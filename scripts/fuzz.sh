#!/bin/sh
# fuzz.sh TIME: runs each fuzz target of the repository for TIME, such as 20s. Stops at the first failure.
set -eu
time=${1:-20s}
grep -rl --include='*_test.go' '^func Fuzz' . | while read -r file; do
	sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' "$file" | while read -r target; do
		echo "== $(dirname "$file") $target"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$(dirname "$file")" </dev/null || exit 1
	done || exit 1
done
