#!/usr/bin/env bash
# bench.sh [N]: the time from command to exit of a program that does nothing, N times each (20): the interpreter without
# protection, in bubblewrap, and in Glovebox. Prints the median and the slowest in milliseconds.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
n=${1:-20}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
echo "data_dir: $work/data" >"$work/glovebox.yaml"
python=/usr/bin/python3
[ -x "$python" ] || python=/usr/local/bin/python3

measure() { # NAME COMMAND...
	local name=$1 i start end
	shift
	"$@" >/dev/null # once for the caches
	for ((i = 0; i < n; i++)); do
		start=$(date +%s%N)
		"$@" >/dev/null
		end=$(date +%s%N)
		echo $(((end - start) / 1000))
	done | sort -n | awk -v name="$name" '{ v[NR] = $1 }
		END { printf "%-34s median %7.1f ms   slowest %7.1f ms\n", name, v[int((NR + 1) / 2)] / 1000, v[NR] / 1000 }'
}

links=()
for d in bin sbin lib lib64; do
	if [ -L "/$d" ]; then links+=(--symlink "usr/$d" "/$d"); elif [ -d "/$d" ]; then links+=(--ro-bind "/$d" "/$d"); fi
done
measure "python3, no protection" "$python" -I -c pass
measure "python3 in bubblewrap" bwrap --unshare-all --ro-bind /usr /usr "${links[@]}" --proc /proc --dev /dev \
	"$python" -I -c pass
measure "glovebox version" bin/glovebox version
measure "glovebox run, process rung" bin/glovebox --config "$work/glovebox.yaml" run --quiet --trust model \
	--isolation process -c pass
