# IL-13, BL-056, BL-057: counts processors in the ways that programs do
[ "$(hostname)" = sandbox ] || exit 99
nproc
grep -c ^processor /proc/cpuinfo
python3 -c 'import os; print(os.cpu_count(), len(os.sched_getaffinity(0)))'
command -v node > /dev/null && node -p 'require("os").availableParallelism()'
echo end
