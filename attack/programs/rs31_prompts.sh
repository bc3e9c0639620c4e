# RS-31, BL-020 to BL-022: reads an input that nobody offered
[ "$(hostname)" = sandbox ] || exit 99
cat
read -r x
grep foo
python3 -c 'input()' 2> /dev/null && echo "broke: input"
read -r -p "name? " y
[ -z "$x$y" ] || echo "broke: read $x$y"
echo end
