# FS-28: leaves pipes where files are expected, a writer waiting at each
[ "$(hostname)" = sandbox ] || exit 99
cd /outputs || exit 98
for i in $(seq 50); do
  mkdir -p "d$i" && mkfifo "d$i/result.json"
done
mkfifo result.json
(echo late > result.json) &
(cat d1/result.json) &
echo fine > ok.txt
echo end
