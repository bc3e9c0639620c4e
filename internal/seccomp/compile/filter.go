package compile

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"syscall"

	asm "github.com/elastic/go-seccomp-bpf"
	"github.com/elastic/go-seccomp-bpf/arch"
	"golang.org/x/net/bpf"
)

const (
	offsetNumber = 0 // in struct seccomp_data
	offsetArch   = 4

	// Numbers of the x32 calls have this bit: the same kernel code, another number, so a filter by number must refuse them
	// all.
	bitX32 = 0x40000000
	// Negative numbers have this one besides. No call of x32 has it: portable libraries ask for -1 when they mean "a call
	// this machine does not have".
	bitNegative = 0x80000000

	// Longest filter that the kernel takes, in instructions.
	longest = 4096
)

// Filter builds the system call filter for programs of an architecture, "amd64" or "arm64", as an array of struct
// sock_filter in little-endian byte order, which both have. The caller owns it.
//
// It fails for an architecture that it has no rules for, and when a rule names a call that the architecture's table lacks
// without saying so: a rule never disappears unnoticed.
func Filter(goarch string) ([]byte, error) { return build(goarch, rules()) }

// Template is Filter for a template and all that is made of it, init and program, each of which has its own fence besides:
// what a template makes sandboxes with is not refused, and no call is looked at closer.
func Template(goarch string) ([]byte, error) { return build(goarch, templateRules()) }

// Guest is Filter for a program on a kernel in user space, which is its fence: it refuses namespaces and mounts alone.
func Guest(goarch string) ([]byte, error) { return build(goarch, guestRules()) }

func build(goarch string, all ruleset) ([]byte, error) {
	program, err := assemble(goarch, all)
	if err != nil {
		return nil, fmt.Errorf("system call filter for %q: %w", goarch, err)
	}
	raw, err := bpf.Assemble(program)
	if err != nil {
		return nil, fmt.Errorf("system call filter for %q: %w", goarch, err)
	}
	if len(raw) > longest {
		return nil, fmt.Errorf("system call filter for %q: %d instructions, more than %d", goarch, len(raw), longest)
	}
	b := make([]byte, 0, 8*len(raw))
	for _, i := range raw {
		b = binary.LittleEndian.AppendUint16(b, i.Op)
		b = append(b, i.Jt, i.Jf)
		b = binary.LittleEndian.AppendUint32(b, i.K)
	}
	return b, nil
}

// verdict is what becomes of a call. emit appends instructions of which every path returns; the accumulator's content is
// free. Verdicts of one name are the same.
type verdict struct {
	name string
	emit func(p *asm.Program)
}

func allow() verdict { return verdict{"allow", func(p *asm.Program) { p.Ret(asm.ActionAllow) }} }

func refuse(e syscall.Errno) verdict {
	return verdict{errnoName(e), func(p *asm.Program) { p.Ret(answer(e)) }}
}

func answer(e syscall.Errno) asm.Action {
	if e == 0 {
		e = unused
	}
	return asm.ActionErrno | asm.Action(e)
}

// unused stands for the answer 0, which the library would take for "no errno given". No call answers with it (the kernel's
// largest errno is 133), and pretend puts 0 in its place.
const unused syscall.Errno = 4094

func pretend(body []bpf.Instruction) {
	for i, in := range body {
		if ret, ok := in.(bpf.RetConstant); ok && ret.Val == uint32(answer(0)) {
			body[i] = bpf.RetConstant{Val: uint32(asm.ActionErrno)}
		}
	}
}

// span is a run of call numbers with the same verdict, up to the next span's first.
type span struct {
	first uint32
	verdict
}

// assemble builds the filter. The hot path is the two loads, the check of the architecture, one check for "above the table"
// and a binary search among the spans. All of it depends on nothing but architecture and number, so that kernels since 5.11
// know the calls that always pass and do not run the filter for them at all.
func assemble(goarch string, all ruleset) ([]bpf.Instruction, error) {
	if goarch != "amd64" && goarch != "arm64" {
		return nil, fmt.Errorf("no rules for this architecture")
	}
	info, err := arch.GetInfo(goarch)
	if err != nil {
		return nil, err
	}
	spans, last, err := judge(goarch, info, all)
	if err != nil {
		return nil, err
	}
	p := asm.NewProgram()
	beyond := p.NewLabel()
	p.JmpIfTrue(bpf.JumpGreaterThan, last, beyond)
	search(&p, spans)
	p.SetLabel(beyond)
	if goarch == "amd64" && !all.mild {
		unknown := p.NewLabel()
		p.JmpIfTrue(bpf.JumpBitsSet, bitNegative, unknown)
		p.JmpIfTrue(bpf.JumpBitsNotSet, bitX32, unknown)
		p.Ret(asm.ActionKillProcess)
		p.SetLabel(unknown)
	}
	p.Ret(answer(syscall.ENOSYS))
	body, err := p.Assemble()
	if err != nil {
		return nil, err
	}
	pretend(body)
	// The library's own policy sends a foreign architecture to the default action, which here would be to allow.
	return append([]bpf.Instruction{
		bpf.LoadAbsolute{Off: offsetArch, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(info.ID), SkipTrue: 1},
		bpf.RetConstant{Val: uint32(asm.ActionKillProcess)},
		bpf.LoadAbsolute{Off: offsetNumber, Size: 4},
	}, body...), nil
}

// search emits a binary search for the number in the accumulator.
func search(p *asm.Program, spans []span) {
	if len(spans) == 1 {
		spans[0].emit(p)
		return
	}
	middle := len(spans) / 2
	right := p.NewLabel()
	p.JmpIfTrue(bpf.JumpGreaterOrEqual, spans[middle].first, right)
	search(p, spans[:middle])
	p.SetLabel(right)
	search(p, spans[middle:])
}

// judge gives every number from 0 to the last known one its verdict: what no rule names passes, what the table does not know
// does not exist.
func judge(goarch string, info *arch.Info, all ruleset) (spans []span, last uint32, err error) {
	byName, err := verdicts(goarch, info, all)
	if err != nil {
		return nil, 0, err
	}
	top := 0
	for n := range info.SyscallNumbers {
		top = max(top, n)
	}
	for n := range top + 1 {
		v := refuse(syscall.ENOSYS)
		if name, known := info.SyscallNumbers[n]; known {
			v = allow()
			if ruled, ok := byName[name]; ok {
				v = ruled
			}
		}
		if len(spans) == 0 || spans[len(spans)-1].name != v.name {
			spans = append(spans, span{uint32(n), v})
		}
	}
	return spans, uint32(top), nil
}

// verdicts collects the rules by call and checks each name against the architecture's table.
func verdicts(goarch string, info *arch.Info, all ruleset) (map[string]verdict, error) {
	byName := map[string]verdict{}
	add := func(call string, v verdict) error {
		if _, twice := byName[call]; twice {
			return fmt.Errorf("two rules for %s", call)
		}
		_, known := info.SyscallNames[call]
		lacks := slices.Contains(strings.Fields(absent(goarch)), call)
		switch {
		case !known && !lacks:
			return fmt.Errorf("unknown call %s in a rule", call)
		case known && lacks:
			return fmt.Errorf("call %s is listed as absent but known", call)
		}
		byName[call] = v
		return nil
	}
	for _, r := range all.refused {
		for _, call := range strings.Fields(r.calls) {
			if err := add(call, refuse(r.errno)); err != nil {
				return nil, err
			}
		}
	}
	for _, c := range all.judged {
		if err := add(c.call, verdict{"if " + c.call, c.emit}); err != nil {
			return nil, err
		}
	}
	return byName, nil
}
