package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// answerLimit is how long the probe waits for whoever answers.
const answerLimit = 3 * time.Second

// resolve asks the sandbox's name server for names, as any program does.
func resolve(names []string) error {
	for _, name := range names {
		ctx, stop := context.WithTimeout(context.Background(), 2*answerLimit)
		addresses, err := net.DefaultResolver.LookupHost(ctx, name)
		stop()
		slices.Sort(addresses)
		answer(name+" "+strings.Join(addresses, " "), err)
	}
	return nil
}

// send sends a datagram to an address, and again for each line of its input, and says what came back and after how long.
func send(args []string) error {
	if len(args) < 2 {
		return errors.New("no address or no text")
	}
	for b := make([]byte, 1); ; {
		begun := time.Now()
		text, err := exchange(args[0], args[1])
		answer(fmt.Sprintf("%s %dms", text, time.Since(begun).Milliseconds()), err)
		if len(args) < 3 {
			return nil
		}
		for b[0] = 0; b[0] != '\n'; {
			if n, err := os.Stdin.Read(b); n == 0 {
				return err
			}
		}
	}
}

func exchange(address, text string) (string, error) {
	conn, err := net.DialTimeout("udp", address, answerLimit)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(answerLimit)); err != nil {
		return "", err
	}
	if _, err := conn.Write([]byte(text)); err != nil {
		return "", err
	}
	b := make([]byte, 64<<10)
	n, err := conn.Read(b)
	return string(b[:n]), err
}

// meddle tries to change the network that it has, or to get another.
func meddle([]string) error {
	sock, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	request := func(what string, number uintptr, name string, set func(*unix.Ifreq)) {
		req, err := unix.NewIfreq(name)
		if err == nil {
			set(req)
			_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(sock), number, uintptr(unsafe.Pointer(req)))
			if err = nil; errno != 0 {
				err = errno
			}
		}
		answer(what, err)
	}
	for _, name := range []string{"eth0", "lo"} {
		request("down "+name, unix.SIOCSIFFLAGS, name, func(r *unix.Ifreq) { r.SetUint16(0) })
		request("mtu "+name, unix.SIOCSIFMTU, name, func(r *unix.Ifreq) { r.SetUint32(1400) })
		request("address "+name, unix.SIOCSIFADDR, name, func(r *unix.Ifreq) { _ = r.SetInet4Addr([]byte{10, 0, 0, 1}) })
	}
	var route [120]byte // struct rtentry: a way to everything by 198.18.0.3
	for at, b := range map[int][]byte{8: {unix.AF_INET}, 24: {unix.AF_INET, 0, 0, 0, 198, 18, 0, 3}, 40: {unix.AF_INET},
		56: {unix.RTF_UP | unix.RTF_GATEWAY}} {
		copy(route[at:], b)
	}
	for what, number := range map[string]uintptr{"add route": unix.SIOCADDRT, "delete route": unix.SIOCDELRT} {
		_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(sock), number, uintptr(unsafe.Pointer(&route)))
		if errno != 0 {
			answer(what, errno)
		} else {
			answer(what, nil)
		}
	}
	for what, s := range map[string][3]int{"packet socket": {unix.AF_PACKET, unix.SOCK_RAW, 0x0300},
		"raw socket": {unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, "raw socket of IPv6": {unix.AF_INET6, unix.SOCK_RAW, 58},
		"vsock": {unix.AF_VSOCK, unix.SOCK_STREAM, 0}} {
		_, err := unix.Socket(s[0], s[1], s[2])
		answer(what, err)
	}
	for _, path := range []string{"/dev/net/tun", "/dev/tun", "/dev/vhost-net"} {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if answer(path, err); err == nil {
			f.Close()
		}
	}
	for _, path := range []string{"/proc/sys/net/ipv4/tcp_rmem", "/proc/sys/net/ipv4/ip_forward",
		"/proc/sys/net/ipv6/conf/all/disable_ipv6"} {
		answer(path, os.WriteFile(path, []byte("1"), 0))
	}
	answer("network namespace", unix.Unshare(unix.CLONE_NEWNET))
	answer("user namespace", unix.Unshare(unix.CLONE_NEWUSER|unix.CLONE_NEWNET))
	return ownDescriptors()
}

// ownDescriptors says of each descriptor whether it is a device of networks.
func ownDescriptors() error {
	links, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		return err
	}
	for _, link := range links {
		to, err := os.Readlink(link)
		if err == nil && !strings.Contains(to, "tun") {
			err = errors.New("another")
		}
		answer("descriptor "+filepath.Base(link), err)
	}
	return nil
}
