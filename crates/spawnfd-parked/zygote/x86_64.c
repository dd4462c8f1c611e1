/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The code that depends on the architecture, for x86_64: the entry point and the system call
 * (psABI, A.2.1). */
#include "zygote.h"

#ifdef __x86_64__

/* The entry point. The kernel has put argc and argv on the stack. */
__asm__(".globl _start\n"
	"_start:\n"
	"	xorl %ebp, %ebp\n"
	"	movq (%rsp), %rdi\n"
	"	leaq 8(%rsp), %rsi\n"
	"	andq $-16, %rsp\n"
	"	call spawnfd_zygote\n"
	"	ud2\n");

long spawnfd_raw_syscall(long number, const long arguments[6])
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

#endif
