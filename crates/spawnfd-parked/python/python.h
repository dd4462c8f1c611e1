/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#pragma once

/* Replaces main() of a CPython interpreter, which parks after its initialisation. */
int spawnfd_python_main(int argc, char **argv, char **envp, int (*original)(int, char **, char **));
