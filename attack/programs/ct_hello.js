// CT: the smallest useful program
console.log("hello")
