# sleeps as long as the first argument says
exec sleep "$1"
