# CT: the smallest useful program
echo hello
