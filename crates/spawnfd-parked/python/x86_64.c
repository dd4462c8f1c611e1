/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The code that depends on the architecture, for x86_64 (psABI, 3.2.1). */
#include "finish.h"

#ifdef __x86_64__

/* rbx, rbp, r12 to r15. */
const int spawnfd_preserved[] = {3, 6, 12, 13, 14, 15};
const int spawnfd_preserved_count = sizeof(spawnfd_preserved) / sizeof(*spawnfd_preserved);

__asm__(".pushsection .text\n"
	".hidden spawnfd_return_to\n"
	".globl spawnfd_return_to\n"
	"spawnfd_return_to:\n"
	"	movq 16(%rdi), %rbx\n"
	"	movq 24(%rdi), %rbp\n"
	"	movq 32(%rdi), %r12\n"
	"	movq 40(%rdi), %r13\n"
	"	movq 48(%rdi), %r14\n"
	"	movq 56(%rdi), %r15\n"
	"	movq (%rdi), %rdx\n"
	"	movq 8(%rdi), %rsp\n"
	"	xorl %eax, %eax\n"
	"	jmpq *%rdx\n"
	".popsection\n");

bool spawnfd_has_shadow_stack(void)
{
	unsigned long pointer = 0;

	/* RDSSPQ reads the shadow stack pointer. Without a shadow stack it does nothing. */
	__asm__ volatile(".byte 0xf3, 0x48, 0x0f, 0x1e, 0xc8" : "+a"(pointer));
	return pointer != 0;
}

#endif
