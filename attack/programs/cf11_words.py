# CF-11, AU-01, LG-08: prints the words that it was given
import os, sys

print(ascii(sys.argv[1:]))
print(ascii(os.environ.get("WORDS")))
print(ascii(sorted(os.listdir("/inputs"))))
raise RuntimeError("a\n{\"event\":\"run.end\",\"user\":\"root\"}\r\x1b[2J")
