# CT: the smallest useful program
print("hello")
