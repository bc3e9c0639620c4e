package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func number(args []string, n int) (int, error) {
	if len(args) <= n {
		return 0, errors.New("a number is missing")
	}
	return strconv.Atoi(args[n])
}

// refused prints how often something could be done, and what refused the next.
func refused(done int, err error) error {
	var number syscall.Errno
	switch {
	case err == nil:
		fmt.Fprintln(os.Stdout, done, "none")
	case errors.As(err, &number):
		fmt.Fprintln(os.Stdout, done, unix.ErrnoName(number))
	default:
		fmt.Fprintln(os.Stdout, done, err)
	}
	return nil
}

// alloc takes memory of a kind until all of this process is so large, says so, and waits for the end of its input.
func alloc(args []string) error {
	total, err := number(args, 1)
	if err != nil {
		return err
	}
	switch args[0] {
	case "plain", "memfd":
		err = mapped(args[0], max(total-resident(), 0))
	case "children": // each a quarter
		each := strconv.Itoa((total - resident()) / 4)
		for range 4 {
			child := exec.Command("/proc/self/exe", "alloc", "plain", each)
			in, failed := child.StdinPipe()
			if failed != nil {
				return failed
			}
			defer in.Close()
			out, failed := child.StdoutPipe()
			if err = errors.Join(err, failed, child.Start()); err != nil {
				return err
			}
			if _, err := out.Read(make([]byte, 1)); err != nil {
				return errors.New("a child could not have its part")
			}
		}
	default:
		return errors.New("no such kind of memory")
	}
	if err != nil {
		return err
	}
	fmt.Fprintln(os.Stdout, "has", total)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// resident is the memory that this process has by now.
func resident() int {
	for _, line := range lines("/proc/self/status") {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kib, _ := strconv.Atoi(strings.Fields(rest)[0])
			return kib << 10
		}
	}
	return 0
}

// mapped touches so many bytes.
func mapped(kind string, size int) error {
	fd, flags := -1, unix.MAP_PRIVATE|unix.MAP_ANON
	if kind == "memfd" {
		var err error
		if fd, err = unix.MemfdCreate("probe", 0); err != nil {
			return err
		}
		if err := unix.Ftruncate(fd, int64(size)); err != nil {
			return err
		}
		flags = unix.MAP_SHARED
	}
	if size == 0 {
		return nil
	}
	memory, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return err
	}
	for at := 0; at < len(memory); at += os.Getpagesize() {
		memory[at] = byte(at>>12) | 1
	}
	return nil
}

// fill writes to a file until it is refused: one with a name, or one that has none any more.
func fill(args []string) error {
	most, err := number(args, 2)
	if err != nil {
		return err
	}
	f, err := os.Create(args[1])
	if err != nil {
		return err
	}
	if args[0] == "unlinked" {
		if err := os.Remove(args[1]); err != nil {
			return err
		}
	}
	done, piece := 0, bytes.Repeat([]byte("0123456789abcdef"), 256)
	for done < most && err == nil {
		var n int
		n, err = f.Write(piece)
		done += n
	}
	if err == nil {
		err = f.Sync()
	}
	if err := refused(done, err); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, os.Stdin) // the file lives as long as this
	return err
}

// nodes makes files until it is refused, and keeps no name of every second.
func nodes(args []string) error {
	many, err := number(args, 1)
	if err != nil {
		return err
	}
	done := 0
	for done < many {
		if err = unix.Mkdir(filepath.Join(args[0], strconv.Itoa(done)), 0o700); err != nil {
			break
		}
		done++
	}
	return refused(done, err)
}

// thread starts threads that stay. The Go runtime dies where one is refused.
func thread(args []string) error {
	many, err := number(args, 0)
	if err != nil {
		return err
	}
	for range many {
		started := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(started)
			unix.Select(0, nil, nil, nil, nil)
		}()
		<-started
	}
	return refused(many, nil)
}

func opens(args []string) error {
	many, err := number(args, 0)
	if err != nil {
		return err
	}
	limit := unix.Rlimit{Cur: uint64(many) * 2, Max: uint64(many) * 2}
	raised := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	done := 0
	for done < many {
		if _, err = unix.Dup(0); err != nil {
			break
		}
		done++
	}
	if raised == nil {
		fmt.Fprintln(os.Stdout, "the limit was raised")
	}
	return refused(done, err)
}

// flood writes to both streams at once, as much to each.
func flood(args []string) error {
	most, err := number(args, 0)
	if err != nil {
		return err
	}
	var all sync.WaitGroup
	for _, to := range []*os.File{os.Stdout, os.Stderr} {
		all.Go(func() {
			line := bytes.Repeat([]byte("x"), 1<<16)
			for left := most; left > 0; {
				n, err := to.Write(line[:min(left, len(line))])
				if left -= n; err != nil {
					os.Exit(3)
				}
			}
		})
	}
	all.Wait()
	return nil
}

// daemon leaves processes behind that belong to nobody: of a session of their own, with their parent gone, deaf to signals.
func daemon(args []string) error {
	hold := len(args) > 0 && args[0] == "hold" // the streams
	for range 3 {
		child := exec.Command("/proc/self/exe", "detach")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		ready, err := child.StdoutPipe()
		if err != nil {
			return err
		}
		if child.Stderr = nil; hold {
			child.Stderr = os.Stderr
		}
		if err := child.Start(); err != nil {
			return err
		}
		if _, err := ready.Read(make([]byte, 1)); err != nil {
			return err
		}
		if err := child.Wait(); err != nil {
			return err
		}
	}
	fmt.Fprintln(os.Stdout, "up")
	if hold {
		return nil
	}
	return sleep(nil)
}

// detach starts the one that stays and ends.
func detach([]string) error {
	child := exec.Command("/proc/self/exe", "sleep")
	child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	child.Stderr = os.Stderr
	if err := child.Start(); err != nil {
		return err
	}
	_, err := fmt.Fprintln(os.Stdout, "x")
	return err
}

func sleep([]string) error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGPIPE)
	time.Sleep(10 * time.Minute)
	return nil
}

// tree makes and ends children without end, so that at any instant something is half made.
func tree([]string) error {
	fmt.Fprintln(os.Stdout, "up")
	for {
		var children []*exec.Cmd
		for range 3 {
			child := exec.Command("/proc/self/exe", "spin", "1")
			child.Stdout = os.Stdout
			if child.Start() == nil {
				children = append(children, child)
			}
		}
		for _, child := range children {
			child.Wait()
		}
	}
}

// serve offers a port, a socket without a path and a file, and says where.
func serve(args []string) error {
	port, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	abstract, err := net.Listen("unix", "@"+args[0])
	if err != nil {
		return err
	}
	for _, dir := range []string{"/workspace", "/tmp", "/dev/shm"} {
		if err := os.WriteFile(filepath.Join(dir, args[0]), []byte(args[0]), 0o666); err != nil {
			return err
		}
	}
	id, err := unix.SysvShmGet(0x676c6f76, 4096, unix.IPC_CREAT|0o666)
	if err != nil {
		id = -1
	}
	for _, l := range []net.Listener{port, abstract} {
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				fmt.Fprintln(os.Stdout, "visited")
				c.Close()
			}
		}()
	}
	fmt.Fprintln(os.Stdout, "at", port.Addr(), id)
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// loop listens and visits itself, and leaves a socket in /outputs.
func loop([]string) error {
	for _, way := range [][2]string{{"tcp", "127.0.0.1:0"}, {"unix", "@loop"}, {"unix", "/outputs/socket"}} {
		l, err := net.Listen(way[0], way[1])
		if err != nil {
			answer(way[0]+" "+way[1], err)
			continue
		}
		go func() {
			if c, err := l.Accept(); err == nil {
				fmt.Fprintln(c, "welcome")
				c.Close()
			}
		}()
		c, err := net.DialTimeout(way[0], l.Addr().String(), 5*time.Second)
		if err == nil {
			_, err = c.Read(make([]byte, 1))
		}
		answer(way[0]+" "+way[1], err)
	}
	return nil
}

// wake shares memory with a child as semaphores with names do: one makes the file under another name, and links it to that
// by which the other opens it.
func wake(args []string) error {
	name := args[0]
	if len(args) == 1 {
		name += ".new"
	}
	memory, err := mapFile(name)
	if err != nil {
		return err
	}
	if len(args) == 1 {
		if err := errors.Join(os.Link(name, args[0]), os.Remove(name)); err != nil {
			return err
		}
	}
	at := uintptr(unsafe.Pointer(&memory[0]))
	if len(args) > 1 { // the child: it says so, then waits while the word is nought
		fmt.Fprintln(os.Stdout, "waits")
		patience := unix.NsecToTimespec((5 * time.Second).Nanoseconds())
		for memory[0] == 0 {
			_, _, e := unix.Syscall6(unix.SYS_FUTEX, at, futexWait, 0, uintptr(unsafe.Pointer(&patience)), 0, 0)
			if e != 0 && e != unix.EAGAIN && e != unix.EINTR {
				return e
			}
		}
		return nil
	}
	child := exec.Command("/proc/self/exe", "wake", args[0], "child")
	out, err := child.StdoutPipe()
	if err != nil {
		return err
	}
	child.Stderr = os.Stderr
	if err := child.Start(); err != nil {
		return err
	}
	if _, err := io.ReadFull(out, make([]byte, len("waits\n"))); err != nil {
		return err
	}
	time.Sleep(100 * time.Millisecond) // it waits by now, or will find the word set
	memory[0] = 1
	if _, _, e := unix.Syscall6(unix.SYS_FUTEX, at, futexWake, 1, 0, 0, 0); e != 0 {
		return e
	}
	answer("wake "+args[0], child.Wait())
	return nil
}

// What futex(2) is told: to wait, and to wake, processes that share the memory.
const futexWait, futexWake = 0, 1

func mapFile(path string) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(int64(os.Getpagesize())); err != nil {
		return nil, err
	}
	return unix.Mmap(int(f.Fd()), 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

func spin(args []string) error {
	ms, err := number(args, 0)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	for end := time.Now().Add(time.Duration(ms) * time.Millisecond); time.Now().Before(end); {
	}
	return nil
}
