/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* The code that depends on the architecture, for aarch64 (AAPCS64, 6.1; AADWARF64, 4.1). */
#include "finish.h"

#ifdef __aarch64__

/* x19 to x29, and the lower halves of v8 to v15. */
const int spawnfd_preserved[] = {19, 20, 21, 22, 23, 24, 25, 26, 27, 28,
				 29, 72, 73, 74, 75, 76, 77, 78, 79};
const int spawnfd_preserved_count = sizeof(spawnfd_preserved) / sizeof(*spawnfd_preserved);

/* RET jumps to x30. Unlike BR, it needs no landing pad at its target (BTI). */
__asm__(".pushsection .text\n"
	".hidden spawnfd_return_to\n"
	".globl spawnfd_return_to\n"
	".type spawnfd_return_to, %function\n"
	"spawnfd_return_to:\n"
	"	ldp x30, x1, [x0]\n"
	"	ldp x19, x20, [x0, #16]\n"
	"	ldp x21, x22, [x0, #32]\n"
	"	ldp x23, x24, [x0, #48]\n"
	"	ldp x25, x26, [x0, #64]\n"
	"	ldp x27, x28, [x0, #80]\n"
	"	ldr x29, [x0, #96]\n"
	"	ldp d8, d9, [x0, #104]\n"
	"	ldp d10, d11, [x0, #120]\n"
	"	ldp d12, d13, [x0, #136]\n"
	"	ldp d14, d15, [x0, #152]\n"
	"	mov sp, x1\n"
	"	mov x0, #0\n"
	"	ret\n"
	".popsection\n");

bool spawnfd_has_shadow_stack(void)
{
	register unsigned long features __asm__("x16") = 1;

	/* CHKFEAT clears bit 0 if the guarded control stack is on. Without the instruction it does
	 * nothing. */
	__asm__ volatile("hint #40" : "+r"(features));
	return !(features & 1);
}

#endif
