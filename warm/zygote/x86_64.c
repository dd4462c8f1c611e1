/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * All that depends on the processor: the first instruction, the system call, and the birth of a
 * child on another stack. A port adds one file like this (psABI, A.2.1).
 */
#include "zygote.h"

#ifdef __x86_64__

/* argc and argv are on the stack. */
__asm__(".globl _start\n"
	"_start:\n"
	"	xorl %ebp, %ebp\n"
	"	movq (%rsp), %rdi\n"
	"	leaq 8(%rsp), %rsi\n"
	"	andq $-16, %rsp\n"
	"	call spawnfd_zygote\n"
	"	ud2\n");

long spawnfd_enter(long number, const long arguments[6])
{
	register long fourth __asm__("r10") = arguments[3];
	register long fifth __asm__("r8") = arguments[4];
	register long sixth __asm__("r9") = arguments[5];

	__asm__ volatile("syscall"
			 : "+a"(number)
			 : "D"(arguments[0]), "S"(arguments[1]), "d"(arguments[2]), "r"(fourth),
			   "r"(fifth), "r"(sixth)
			 : "rcx", "r11", "memory");
	return number;
}

long spawnfd_clone(unsigned long flags, void *top, int32_t *number, int (*run)(void *), void *data)
{
	long result = 56; /* clone */
	register long no_tid __asm__("r10") = 0;
	register long no_tls __asm__("r8") = 0;
	register int (*kept_run)(void *) __asm__("r12") = run;
	register void *kept_data __asm__("r13") = data;

	__asm__ volatile("syscall\n"
			 "	testq %%rax, %%rax\n"
			 "	jnz 1f\n"
			 "	xorl %%ebp, %%ebp\n"
			 "	movq %%r13, %%rdi\n"
			 "	callq *%%r12\n"
			 "	movl %%eax, %%edi\n"
			 "	movl $231, %%eax\n" /* exit_group */
			 "	syscall\n"
			 "	ud2\n"
			 "1:"
			 : "+a"(result)
			 : "D"(flags), "S"(top), "d"(number), "r"(no_tid), "r"(no_tls),
			   "r"(kept_run), "r"(kept_data)
			 : "rcx", "r11", "memory", "cc");
	return result;
}

#endif
