package sandboxinit

import (
	"bufio"
	"errors"
	"io"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"glovebox/internal/kernelfile"
	"glovebox/internal/sandboxinit/wire"
)

// The kernel counts a TCP connection for whoever accepts it, so what waits to be accepted is counted for nobody. Two things
// bound it: a connection holds little (see wire.ReceiveBuffer), and no more than wire.WaitingConnections wait in the whole
// sandbox, or wire.AttachedConnections in one that has a network. For that the filter sends every listen(2) to init, which
// does it in the program's place on the very socket, so that nothing the program changes meanwhile matters.

// longestQueue is the most connections that wait at one socket, whatever is asked for; the kernel's own bound was this for
// long (listen(2), somaxconn).
const longestQueue = 128

// listeners are the listening sockets of a sandbox.
type listeners struct {
	mu     sync.Mutex
	most   int            // how many connections wait in all
	proc   int            // the sandbox's /proc
	single bool           // the program has init's ids
	room   map[uint64]int // by inode: for how many waiting connections there is room
	since  int            // calls since it was last counted which sockets there still are
}

// answer does what the program's calls of listen ask for until nobody is left under its filter. It owns notes, the
// descriptor of the filter's notifications (seccomp_unotify(2)).
func (l *listeners) answer(notes int) {
	defer unix.Close(notes)
	spent, idle := time.Duration(0), time.Now()
	for {
		ready := []unix.PollFd{{Fd: int32(notes), Events: unix.POLLIN}}
		if _, err := unix.Poll(ready, -1); err != nil {
			if errors.Is(err, unix.EINTR) {
				continue
			}
			return // from now on the kernel answers ENOSYS
		}
		if ready[0].Revents&unix.POLLIN == 0 {
			return
		}
		var n notification
		if control(notes, unix.SECCOMP_IOCTL_NOTIF_RECV, unsafe.Pointer(&n)) != 0 {
			continue // whoever asked is gone
		}
		asked := time.Now()
		r := response{id: n.id, errno: -int32(l.listen(notes, &n))}
		// One who is gone, or was interrupted and asks again, needs no answer.
		control(notes, unix.SECCOMP_IOCTL_NOTIF_SEND, unsafe.Pointer(&r))
		// Init's time is beside the run's limit of it: whoever does nothing but ask gets a tenth of a CPU.
		took := time.Since(asked)
		if spent = max(0, spent-asked.Sub(idle)/9) + took; spent > burst {
			time.Sleep(min(9*took, burst))
		}
		idle = asked.Add(took)
	}
}

// burst is how much time init spends on listening before it takes its time.
const burst = 50 * time.Millisecond

// notification is struct seccomp_notif and response struct seccomp_notif_resp (linux/seccomp.h).
type notification struct {
	id         uint64
	pid, flags uint32
	number     int32
	arch       uint32
	ip         uint64
	args       [6]uint64
}

type response struct {
	id    uint64
	value int64
	errno int32
	flags uint32
}

func control(fd int, request uintptr, arg unsafe.Pointer) unix.Errno {
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), request, uintptr(arg))
	return errno
}

// listen does the call of a notification.
func (l *listeners) listen(notes int, n *notification) unix.Errno {
	sock, err := l.take(notes, n)
	if err == nil {
		defer unix.Close(sock)
		err = l.do(sock, int(int32(n.args[1])))
	}
	var errno unix.Errno
	if err != nil && !errors.As(err, &errno) {
		errno = unix.EPERM
	}
	return errno
}

// take opens the socket that a call means, and fails as the call does where it means none.
func (l *listeners) take(notes int, n *notification) (int, error) {
	pid := int(n.pid)
	process, err := unix.PidfdOpen(pid, 0)
	if err != nil { // a thread that is not the first of its process
		first, found := l.first(pid)
		if !found {
			return -1, unix.ESRCH
		}
		if process, err = unix.PidfdOpen(first, 0); err != nil {
			return -1, err
		}
	}
	defer unix.Close(process)
	// Numbers of processes are used again: it is the caller's only while the caller waits.
	if errno := control(notes, unix.SECCOMP_IOCTL_NOTIF_ID_VALID, unsafe.Pointer(&n.id)); errno != 0 {
		return -1, errno
	}
	return unix.PidfdGetfd(process, int(int32(n.args[0])), 0)
}

// first is the process that a thread belongs to.
func (l *listeners) first(thread int) (pid int, found bool) {
	status, _ := kernelfile.ReadAt(l.proc, strconv.Itoa(thread)+"/status") // what cannot be read has no such line
	for line := range strings.Lines(status) {
		if tgid, ok := strings.CutPrefix(line, "Tgid:"); ok {
			pid, err := strconv.Atoi(strings.TrimSpace(tgid))
			return pid, err == nil
		}
	}
	return 0, false
}

// do lets a socket listen, with as long a queue as was asked for and there is room for.
func (l *listeners) do(sock, asked int) error {
	domain, err := unix.GetsockoptInt(sock, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return err
	}
	if domain != unix.AF_INET && domain != unix.AF_INET6 {
		return l.listenAsProgram(sock, asked) // the kernel counts these for whoever connects
	}
	var st unix.Stat_t
	if err := unix.Fstat(sock, &st); err != nil {
		return err
	}
	if asked < 0 || asked > longestQueue { // the kernel takes a negative number for a large one
		asked = longestQueue
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	queue, err := l.grant(st.Ino, asked)
	if err != nil {
		return err
	}
	if err := unix.Listen(sock, queue); err != nil {
		return err
	}
	// A queue that is made shorter keeps those that wait in it; one more than its length can wait.
	l.room[st.Ino] = max(l.room[st.Ino], queue+1)
	return nil
}

// listenAsProgram lets a socket listen in the name of the program: whoever connects to a Unix socket may ask whose it is
// (SO_PEERCRED). The ids change for one thread and one call.
func (l *listeners) listenAsProgram(sock, queue int) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const keep = ^uintptr(0)
	ids := func(uid, gid uintptr) error {
		calls := []struct{ call, id uintptr }{{unix.SYS_SETRESGID, gid}, {unix.SYS_SETRESUID, uid}}
		if uid == 0 {
			slices.Reverse(calls) // the right to change the group comes back with the user
		}
		for _, c := range calls {
			if _, _, e := unix.RawSyscall(c.call, keep, c.id, keep); e != 0 {
				return e
			}
		}
		return nil
	}
	if l.single { // it is the program's id that init has
		return unix.Listen(sock, queue)
	}
	err := ids(wire.ProgramID, wire.ProgramID)
	if err == nil {
		err = unix.Listen(sock, queue)
	}
	if back := ids(0, 0); back != nil {
		os.Exit(125) // a thread that is nobody's can do nothing right any more
	}
	return err
}

// grant says how long the queue of a socket may be. One takes an eighth of the room that is left at most, and less once half
// is gone, so that there is some for many.
func (l *listeners) grant(ino uint64, asked int) (int, error) {
	// Counting takes milliseconds, and is of use when sockets have gone.
	half, left := l.most/2, l.left(ino)
	if l.since++; left <= half && l.since > 8 || left < 2 {
		if err := l.count(); err != nil {
			return 0, err
		}
		left, l.since = l.left(ino), 0
	}
	share := left / 8
	if left <= half {
		share = left / 32
	}
	queue := max(min(asked, share-1), min(asked, 1))
	if queue+1 > left {
		return 0, unix.ENOBUFS
	}
	return queue, nil
}

// left is the room that sockets other than ino leave.
func (l *listeners) left(ino uint64) int {
	left := l.most
	for other, room := range l.room {
		if other != ino {
			left -= room
		}
	}
	return left
}

// count takes note of which sockets listen still. The kernel's list comes in pieces, so a socket may be left out once when
// others go meanwhile; found again, it counts for the most that it can have.
func (l *listeners) count() error {
	still := map[uint64]int{}
	for _, name := range []string{"self/net/tcp", "self/net/tcp6"} {
		fd, err := unix.Openat(l.proc, name, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if errors.Is(err, unix.ENOENT) && name == "self/net/tcp6" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return err
		}
		list := os.NewFile(uintptr(fd), name)
		err = listening(list, func(ino uint64) {
			room, known := l.room[ino]
			if !known {
				room = longestQueue + 1
			}
			still[ino] = room
		})
		list.Close()
		if err != nil {
			return err
		}
	}
	l.room = still
	return nil
}

// listening reads the inodes of the listening sockets in a list of the form of /proc/net/tcp (proc_pid_net(5)), which they
// are at the head of.
func listening(list io.Reader, each func(ino uint64)) error {
	const state, inode, listens = 3, 9, "0A"
	lines := bufio.NewScanner(list)
	lines.Scan() // the names of the columns
	for lines.Scan() {
		f := strings.Fields(lines.Text())
		if len(f) <= inode {
			return unix.EPROTO
		}
		if f[state] != listens {
			return nil
		}
		ino, err := strconv.ParseUint(f[inode], 10, 64)
		if err != nil {
			return unix.EPROTO
		}
		each(ino)
	}
	return lines.Err()
}

// fetch takes the descriptor of the notifications from the child at the gate, which closes when the child executes the
// program, and says what the kernel calls it.
func (w *started) fetch() (notes int, name string, err error) {
	process, err := unix.PidfdOpen(w.pid, 0)
	if err != nil {
		return -1, "", err
	}
	defer unix.Close(process)
	if notes, err = unix.PidfdGetfd(process, w.notes, 0); err != nil {
		// The kernel refuses it for whoever is ending too, which says nothing of this machine.
		ending := []unix.PollFd{{Fd: int32(process), Events: unix.POLLIN}}
		if n, _ := unix.Poll(ending, 100); n > 0 {
			err = unix.ESRCH
		}
		return -1, "", err
	}
	buf := make([]byte, 64)
	n, err := unix.Readlink("/proc/self/fd/"+strconv.Itoa(notes), buf)
	if err != nil {
		unix.Close(notes)
		return -1, "", err
	}
	return notes, string(buf[:n]), nil
}
