package attack_test

import "golang.org/x/sys/unix"

// numbersOfMachine are calls that only this machine has.
var numbersOfMachine = map[string]int{
	"iopl": unix.SYS_IOPL, "ioperm": unix.SYS_IOPERM, "modify_ldt": unix.SYS_MODIFY_LDT, "uselib": unix.SYS_USELIB,
	"ustat": unix.SYS_USTAT, "sysfs": unix.SYS_SYSFS, "_sysctl": unix.SYS__SYSCTL,
	"create_module":   unix.SYS_CREATE_MODULE,
	"get_kernel_syms": unix.SYS_GET_KERNEL_SYMS, "query_module": unix.SYS_QUERY_MODULE, "vserver": unix.SYS_VSERVER,
	"lookup_dcookie": unix.SYS_LOOKUP_DCOOKIE, "nfsservctl": unix.SYS_NFSSERVCTL,
}

// waitsOfMachine are calls that only this machine has and that wait or end the caller.
var waitsOfMachine = []int{unix.SYS_PAUSE}
