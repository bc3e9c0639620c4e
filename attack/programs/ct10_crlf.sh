#!/bin/sh
# CT-10, BL-101: a script with the line ends of another system
echo hello
exit 3
