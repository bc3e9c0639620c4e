# BL-041, RS-19: a static array above the memory limit, every page of it written
[ "$HARNESS_OK" ] || exit 99
command -v gcc > /dev/null || { echo "not in image: gcc"; exit 0; }
printf 'static long a[100000000];int main(void){for(long i=0;i<100000000;i+=512)a[i]=i+1;return 0;}' > a.c
gcc a.c -o a || exit 98
exec ./a
