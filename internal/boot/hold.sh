printf R >&3 || exit 0
mapfile -d '' -t -u 3 words
exec 3<&-
((${#words[@]})) || exit 0
number='^[0-9]{1,9}$' args=${words[1]-} vars=
if [[ $args =~ $number ]]; then
  args=$((10#$args)) vars=${words[2 + args]-}
fi
if ! [[ ${words[0]} == [01] && $vars =~ $number ]] || ((vars = 10#$vars, ${#words[@]} != 3 + args + vars)); then
  printf 'glovebox: what to run was not understood\n' >&2
  exit 1
fi
if [[ ${words[0]} == 0 ]]; then
  exec </dev/null
fi
exec -c -- /usr/bin/env -i -- "${words[@]:3 + args:vars}" "$@" "${words[@]:2:args}"
