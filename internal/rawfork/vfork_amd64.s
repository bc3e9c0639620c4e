#include "textflag.h"

#define SYS_clone3 435

// func Vfork(args *CloneArgs, size uintptr) (pid uintptr, errno syscall.Errno)
//
// What the child calls from here on overwrites the stack below the caller's frame, this function's return address included.
// So the address waits in a register that the kernel preserves for both.
TEXT ·Vfork(SB), NOSPLIT|NOFRAME, $0-32
	MOVQ	args+0(FP), DI
	MOVQ	size+8(FP), SI
	MOVQ	$SYS_clone3, AX
	POPQ	R12
	SYSCALL
	PUSHQ	R12
	CMPQ	AX, $0xfffffffffffff001
	JCC	failed
	MOVQ	AX, pid+16(FP)
	MOVQ	$0, errno+24(FP)
	RET
failed:
	NEGQ	AX
	MOVQ	$0, pid+16(FP)
	MOVQ	AX, errno+24(FP)
	RET
