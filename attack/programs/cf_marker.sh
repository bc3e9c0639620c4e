# CF-01, CF-03, CF-11: says where it runs; if it ever ran on the host, the harmless file that the argument names would be there
touch "$1" 2> /dev/null
echo "ran in $(hostname)"
