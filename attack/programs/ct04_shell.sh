# CT-04, BL-030: everyday shell
cat <(echo a) <<< b
cat <<'X'
line
X
false | true
echo "pipe $?"
set -o pipefail
false | true
echo "pipefail $?"
(exit 3) &
wait $!
echo "job $?"
cat <(sleep 0.1; echo one) <(echo two)
trap 'echo trapped' USR1
kill -USR1 $$
exec 3> out; echo three >&3; exec 3>&-; cat out
coproc cat; echo co >&"${COPROC[1]}"; read -r x <&"${COPROC[0]}"; echo "$x"
echo "sum $((2 + 2))" | tee copy | wc -l
ps -ef > /dev/null && ps aux | grep -c bash > /dev/null && echo listed
ls # note
