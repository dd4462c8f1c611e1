/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The code that depends on the architecture, for aarch64: the entry point and the system call
 * (syscall(2)). */
#include "zygote.h"

#ifdef __aarch64__

/* The entry point. The kernel has put argc and argv on the stack, which is aligned. */
__asm__(".globl _start\n"
	"_start:\n"
	"	mov x29, #0\n"
	"	mov x30, #0\n"
	"	ldr w0, [sp]\n"
	"	add x1, sp, #8\n"
	"	bl spawnfd_zygote\n"
	"	brk #1\n");

long spawnfd_raw_syscall(long number, const long arguments[6])
{
	register long call __asm__("x8") = number;
	register long first __asm__("x0") = arguments[0];
	register long second __asm__("x1") = arguments[1];
	register long third __asm__("x2") = arguments[2];
	register long fourth __asm__("x3") = arguments[3];
	register long fifth __asm__("x4") = arguments[4];
	register long sixth __asm__("x5") = arguments[5];

	__asm__ volatile("svc #0"
			 : "+r"(first)
			 : "r"(call), "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth)
			 : "memory");
	return first;
}

#endif
