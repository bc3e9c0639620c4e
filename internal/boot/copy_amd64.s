#include "textflag.h"

// The machine code by which a template makes a copy of itself. It is never called in this process: a template maps its bytes
// and calls them as a C function. It is written by hand because between the two forks nothing of Python may run: the first
// child has the template's own memory and stack, and must not write to either.
//
//	long copy(struct { uint64 errno, at; struct clone_args first; struct { uint64 number, arg[6], bears; } call[]; } *orders)
//
// It makes process 1 (first has CLONE_VM and CLONE_VFORK, so that nothing is copied for it and the template waits), which
// does the system calls in turn; the last is to execute init. The one that bears makes process 2, a copy of the template
// that returns 0 from here. The template gets the number of process 1, or -errno if there is none. A call that fails ends
// process 1, and is left in orders: its error and its address.
TEXT ·copyProcess(SB), NOSPLIT|NOFRAME, $0-0
	PUSHQ BX
	PUSHQ R12
	MOVQ  DI, BX
	MOVL  $435, AX      // clone3
	LEAQ  16(BX), DI
	MOVL  $88, SI
	SYSCALL
	TESTQ AX, AX
	JNE   return        // the template
	LEAQ  104(BX), R12

next:
	MOVQ  0(R12), AX
	MOVQ  8(R12), DI
	MOVQ  16(R12), SI
	MOVQ  24(R12), DX
	MOVQ  32(R12), R10
	MOVQ  40(R12), R8
	MOVQ  48(R12), R9
	SYSCALL
	TESTQ AX, AX
	JLT   failed
	JNE   on
	CMPQ  56(R12), $0
	JNE   return        // process 2

on:
	ADDQ  $64, R12
	JMP   next

failed:
	NEGQ  AX
	MOVQ  AX, 0(BX)
	MOVQ  R12, 8(BX)
	MOVL  $231, AX      // exit_group
	MOVL  $127, DI
	SYSCALL

return:
	POPQ R12
	POPQ BX
	RET
	BYTE $0x0f; BYTE $0x0b // UD2: the end of the code
	QUAD $0x646e6520656874 // "the end"

// func copyStart() unsafe.Pointer
TEXT ·copyStart(SB), NOSPLIT, $0-8
	LEAQ ·copyProcess(SB), AX
	MOVQ AX, ret+0(FP)
	RET
