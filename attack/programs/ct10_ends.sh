# CT-10, BL-029, BL-101: ends with the code or by the signal that the arguments name
case $1 in
code) exit "$2" ;;
signal) kill "-$2" $$; sleep 1 ;;
missing) nosuchcommand --x ;;
format) printf '#!/bin/sh\r\necho x\r\n' > s; chmod +x s; ./s ;;
text) echo text > s; chmod 644 s; ./s ;;
esac
