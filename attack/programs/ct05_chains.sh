# CT-05, CT-13, BL-035, BL-041, BL-158, BL-159: builds and runs a program with threads in the language that the argument names
need() { command -v "$1" > /dev/null || { echo "not in image: $1"; exit 0; }; }
case $1 in
c)
  need gcc
  printf '#include <pthread.h>\n#include <stdio.h>\nvoid *f(void *p){return p;}\nint main(void){pthread_t t;pthread_create(&t,0,f,0);pthread_join(t,0);puts("hello");}' > a.c
  gcc -pthread a.c -o a && ./a ;;
cpp)
  need g++
  printf '#include <thread>\n#include <iostream>\nint main(){std::thread t([]{});t.join();std::cout<<"hello\\n";}' > a.cc
  g++ -pthread a.cc -o a && ./a ;;
go)
  need go
  printf 'package main\nfunc main(){c:=make(chan string);go func(){c<-"hello"}();println(<-c)}' > a.go
  GOCACHE=/tmp/c GOFLAGS=-mod=mod go run a.go 2>&1 ;;
rust)
  need rustc
  printf 'fn main(){std::thread::spawn(||{}).join().unwrap();println!("hello");}' > a.rs
  rustc a.rs && ./a ;;
java)
  need java
  printf 'public class A{public static void main(String[] a)throws Exception{Thread t=new Thread(()->{});t.start();t.join();System.out.println("hello");}}' > A.java
  java A.java ;;
node)
  need node
  node -e 'const {Worker}=require("worker_threads");new Worker("",{eval:true}).on("exit",()=>console.log("hello"))' ;;
ruby)
  need ruby
  ruby -e 'Thread.new{}.join; puts "hello"' ;;
perl)
  need perl
  perl -e 'system("true")==0 or die; print "hello\n"' ;;
git)
  need git
  git init -q r && cd r && git -c user.name=a -c user.email=a@example.com commit -q --allow-empty -m x && git worktree add -q ../w && cd ../w && git status -s \
    && echo hello ;;
make)
  need make
  printf 'all: a b\na b:\n\t@touch $@\n' > Makefile
  make -s -j4 all && echo hello ;;
pip)
  python3 -m venv --without-pip v > /dev/null 2>&1 || { echo "not in image: venv"; exit 0; }
  v/bin/python -c 'print("hello")' ;;
esac
