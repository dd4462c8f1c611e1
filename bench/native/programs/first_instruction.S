// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * The child of the first-instruction benchmark: no libc, no dynamic linker.
 *
 * The program first reads CLOCK_MONOTONIC, the clock of the parent's start time. It uses a system
 * call, because the vDSO would have to be looked up. Then it writes the struct timespec, 16 bytes,
 * to descriptor 1. It exits with 0 if all 16 bytes were written, otherwise with 1. The timespec
 * overwrites argc and argv[0] on the stack: the kernel has just written this page, so the store
 * causes no page fault.
 */
	.globl _start
	.text
_start:
#if defined(__x86_64__)
	mov	$228, %eax		/* clock_gettime(CLOCK_MONOTONIC, %rsp) */
	mov	$1, %edi
	mov	%rsp, %rsi
	syscall
	mov	$1, %eax		/* write(1, %rsp, 16) */
	mov	$1, %edi
	mov	$16, %edx
	syscall
	xor	%edi, %edi		/* exit_group(rax != 16) */
	cmp	$16, %rax
	setne	%dil
	mov	$231, %eax
	syscall
	hlt
#elif defined(__aarch64__)
	mov	x8, #113		/* clock_gettime(CLOCK_MONOTONIC, sp) */
	mov	x0, #1
	mov	x1, sp
	svc	#0
	mov	x8, #64			/* write(1, sp, 16) */
	mov	x0, #1
	mov	x1, sp
	mov	x2, #16
	svc	#0
	cmp	x0, #16			/* exit_group(x0 != 16) */
	cset	x0, ne
	mov	x8, #94
	svc	#0
	brk	#0
#else
#error "no first-instruction child for this architecture yet"
#endif
	.section .note.GNU-stack, "", %progbits
