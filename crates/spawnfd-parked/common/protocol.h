/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The protocol between the owner of a parked process and the process itself. The two share a page
 * and an unnamed SOCK_SEQPACKET pair. Both run on one machine and are built together, so every
 * number is in the byte order of the machine.
 *
 * This file is the only definition of the messages. scripts/protocol.py reads it and writes the
 * same numbers and layouts for Rust and Python. The script accepts these declarations only:
 *
 *     #define SPAWNFD_NAME value     a number, INTn_C(n), UINTn_C(n), 'c', "text", or operators
 *     enum spawnfd_tag               members with a common prefix; NAME_COUNT ends a list
 *     struct spawnfd_tag             intN_t and uintN_t; the last field may be an array of structs
 *
 * A comment belongs to the declaration on its line, or else to the next one. A field whose comment
 * begins with `enum spawnfd_tag` holds a member of that enum. Structs have no padding.
 */
#ifndef SPAWNFD_PROTOCOL_H
#define SPAWNFD_PROTOCOL_H

#include <stdint.h>

/* The first field of every message. */
#define SPAWNFD_VERSION UINT32_C(1)
/* The maximum size of a message, in bytes. The owner starts a program cold if its request is
 * longer. */
#define SPAWNFD_MAX_MESSAGE (128 << 10)
/* The maximum number of descriptors in one message: the kernel's SCM_MAX_FD. */
#define SPAWNFD_MAX_DESCRIPTORS 253
/* The lowest descriptor number that a request can keep. Every program has descriptors 0 to 2. */
#define SPAWNFD_FIRST_DESCRIPTOR 3

/* --- parking ------------------------------------------------------------------------------------
 */

/* Environment variable by which the owner tells a program to park: the fields of enum
 * spawnfd_park_field, separated by colons. Descriptors, device and inode are decimal numbers. */
#define SPAWNFD_PARK_VARIABLE "SPAWNFD_PARK"
/* Environment variable that lists the modules to import before parking, separated by commas. */
#define SPAWNFD_PRELOAD_VARIABLE "SPAWNFD_PRELOAD"

enum spawnfd_park_field {
	SPAWNFD_PARK_SOCKET, /* the parked process's end of the pair */
	SPAWNFD_PARK_OWNER,  /* a pidfd of the owner */
	SPAWNFD_PARK_OBJECT, /* the shared object that LD_PRELOAD loads */
	SPAWNFD_PARK_PAGE,   /* the shared page */
	/* The executable to park in. Any other executable runs unchanged. */
	SPAWNFD_PARK_DEVICE,
	SPAWNFD_PARK_INODE,
	SPAWNFD_PARK_KIND,   /* enum spawnfd_kind */
	SPAWNFD_PARK_MODE,   /* enum spawnfd_mode */
	SPAWNFD_PARK_OUTPUT, /* a file for output before parking; this field may be absent */
	SPAWNFD_PARK_COUNT
};

/* The point at which a program parks. */
enum spawnfd_kind {
	SPAWNFD_KIND_MAIN = 'm',   /* main() */
	SPAWNFD_KIND_PYTHON = 'p', /* after CPython has initialized */
	SPAWNFD_KIND_NODE = 'n'	   /* after Node.js has initialized */
};

/* How a parked process is used. */
enum spawnfd_mode {
	SPAWNFD_MODE_RESERVE = 'r', /* the process itself becomes the program */
	SPAWNFD_MODE_SANDBOX = 's', /* as reserve, but a sandbox program starts the process */
	SPAWNFD_MODE_FORK = 'f',    /* children of the process become programs */
	/* Only for the zygote. It reports whether ld.so would preload the object into a program
	 * that is started in its place. */
	SPAWNFD_MODE_PROBE = 'p'
};

/* Descriptors that the zygote inherits. */
enum spawnfd_zygote {
	SPAWNFD_ZYGOTE_SOCKET = 3,
	SPAWNFD_ZYGOTE_OWNER = 4,
	SPAWNFD_ZYGOTE_PAGE = 5
};

enum spawnfd_reply_kind {
	/* The process is parked. Text: names of variables, an empty string, names of files, an
	 * empty string, /proc/thread-self/status, and the security label (empty: none). A forked
	 * child sends its pidfd and no text. */
	SPAWNFD_REPLY_PARKED,
	/* The process cannot park. Text: the reason. */
	SPAWNFD_REPLY_CANNOT
};

/* The only message from a parked process to its owner. Text follows. */
struct spawnfd_reply {
	uint32_t version;
	uint32_t kind; /* enum spawnfd_reply_kind */
	int32_t pid;
	uint32_t securebits;	/* capabilities(7) */
	uint64_t private_bytes; /* memory that the process shares with no other */
};

/* --- requests -----------------------------------------------------------------------------------
 */

/*
 * A message from the owner to a parked process. The steps, the checks, `keep` descriptor numbers
 * (int32_t), and the strings follow. The strings are argv, environ, and paths, each with its NUL,
 * and the bytes that some steps need.
 */
struct spawnfd_request {
	uint32_t version;
	uint32_t serial;      /* the request's number; see struct spawnfd_page */
	uint32_t steps;	      /* number of steps */
	uint32_t sources;     /* number of descriptors that come with the message */
	uint32_t keep;	      /* number of descriptors above 2 that stay open */
	uint32_t argc;	      /* number of arguments */
	uint32_t envc;	      /* number of environment variables */
	uint32_t argv_length; /* size of argv, in bytes */
	uint32_t env_length;  /* size of environ, in bytes */
	uint32_t strings;     /* size of all strings, in bytes */
	int32_t above;	      /* no step names this descriptor number or a higher one */
	uint32_t flags;	      /* SPAWNFD_FLAG_* */
	int32_t program;      /* the source to execute, or SPAWNFD_NO_SOURCE */
	uint32_t path;	      /* path of the program to execute: an offset into the strings */
	uint32_t checks;      /* number of checks */
	uint32_t unused;
};

/* The program gets the environment of the parked process. */
#define SPAWNFD_FLAG_OWN_ENVIRONMENT UINT32_C(1)
/* The parked process forks a child that waits. The message carries the sources of enum
 * spawnfd_fork_source and has no other content. */
#define SPAWNFD_FLAG_FORK UINT32_C(2)
/* The forked child reports its private memory. */
#define SPAWNFD_FLAG_MEASURE UINT32_C(4)
#define SPAWNFD_FLAGS (SPAWNFD_FLAG_OWN_ENVIRONMENT | SPAWNFD_FLAG_FORK | SPAWNFD_FLAG_MEASURE)

#define SPAWNFD_NO_SOURCE INT32_C(-1)

/* A forked child's own connection to the owner. */
enum spawnfd_fork_source { SPAWNFD_FORK_SOCKET, SPAWNFD_FORK_PAGE, SPAWNFD_FORK_COUNT };

/* The operation of one step. Each comment tells which fields of struct spawnfd_step the operation
 * uses. A source is an index of the message's descriptors; `text` is an offset into the strings. */
enum spawnfd_op {
	SPAWNFD_OP_PLACE,	/* a: source, b: number */
	SPAWNFD_OP_DUP2,	/* a: from, b: to; equal numbers: clear close-on-exec */
	SPAWNFD_OP_CLOSE,	/* a: number */
	SPAWNFD_OP_CLOSE_RANGE, /* x: first, y: last */
	/* a: source of the directory or SPAWNFD_NO_SOURCE, b: number, text: path, x y z: flags,
	 * mode and resolve of struct open_how */
	SPAWNFD_OP_OPEN,
	SPAWNFD_OP_OPEN_NULL,	  /* b: number */
	SPAWNFD_OP_TCSETPGRP,	  /* a: number */
	SPAWNFD_OP_OOM_SCORE_ADJ, /* a: value */
	SPAWNFD_OP_CGROUP,	  /* a: source, the directory of the cgroup */
	SPAWNFD_OP_REPLACE,	  /* a: source, b: number; only if both are the same file */
	SPAWNFD_OP_CAPABILITIES,  /* text: a struct spawnfd_capabilities */
	/* a: number of the system call, x y z: its arguments, b: the kind of each, `text`: bytes at
	 * the address of a SPAWNFD_ARGUMENT_TEXT. Further arguments are 0. */
	SPAWNFD_OP_CALL,
	SPAWNFD_OP_COUNT
};

/* The kind of one argument of a system call, in two bits of `b`. The lowest bits are for the first
 * argument. */
enum spawnfd_argument {
	SPAWNFD_ARGUMENT_NUMBER, /* the number itself */
	SPAWNFD_ARGUMENT_SOURCE, /* the descriptor of this source */
	SPAWNFD_ARGUMENT_TEXT,	 /* the address of the string at this offset */
	SPAWNFD_ARGUMENT_DATA	 /* the last argument only: the address of `z`; `w` follows */
};

#define SPAWNFD_ARGUMENTS 3
#define SPAWNFD_ARGUMENT_BITS 2

struct spawnfd_step {
	uint16_t op;	/* enum spawnfd_op */
	uint16_t index; /* index of the caller's action, for an error; or SPAWNFD_CONTEXT */
	int32_t a;
	int32_t b;
	uint32_t text;
	uint64_t x;
	uint64_t y;
	uint64_t z;
	uint64_t w;
};

/* The index of a step that is not an action of the caller. */
#define SPAWNFD_CONTEXT UINT16_C(0xffff)

/* Bit n stands for capability n. */
struct spawnfd_capabilities {
	uint64_t effective;
	uint64_t permitted;
	uint64_t inheritable;
	uint64_t bounding;
	uint64_t ambient;
};

/* The conditions that must hold immediately before exec. */
enum spawnfd_check_kind {
	SPAWNFD_CHECK_SAME,	   /* the path names this file, unchanged */
	SPAWNFD_CHECK_SAME_SOURCE, /* the source to execute is this file, unchanged */
	SPAWNFD_CHECK_ABSENT,	   /* the path names no file that a PATH search would accept */
	SPAWNFD_CHECK_COUNT
};

/* A condition, and the identity of the file that it requires, in the units of struct statx. */
struct spawnfd_check {
	uint32_t kind; /* enum spawnfd_check_kind */
	uint32_t path; /* an offset into the strings */
	uint32_t device_major;
	uint32_t device_minor;
	uint32_t mode;
	uint32_t owner;
	uint32_t group;
	uint32_t ctime_nanoseconds;
	uint32_t mtime_nanoseconds;
	uint32_t unused;
	uint64_t inode;
	uint64_t size;
	int64_t ctime;
	int64_t mtime;
};

/* --- the shared page ----------------------------------------------------------------------------
 */

#define SPAWNFD_PAGE_SIZE 4096

/* The state of a request. */
enum spawnfd_claim {
	SPAWNFD_CLAIM_OFFERED,	 /* the owner has sent the request */
	SPAWNFD_CLAIM_GO,	 /* the owner confirms the request */
	SPAWNFD_CLAIM_WITHDRAWN, /* the owner withdraws the request */
	SPAWNFD_CLAIM_TAKEN,	 /* the parked process carries the request out */
	SPAWNFD_CLAIM_BECAME,	 /* the parked process has become the program */
	SPAWNFD_CLAIM_FAILED,	 /* a step failed, and the parked process exits */
	SPAWNFD_CLAIM_REFUSED	 /* the request is invalid; the parked process did nothing */
};

/* The factor of the claim word: serial number of the request * SPAWNFD_CLAIM_STATES + state. */
#define SPAWNFD_CLAIM_STATES 8

/* The maximum number of steps in the page. */
#define SPAWNFD_MAX_FIRST 24

/*
 * The owner sends a request before it has finished comparing itself with the parked process. The
 * parked process prepares meanwhile, without visible effect. The owner then writes the result of
 * the comparison into the page and sets the claim to SPAWNFD_CLAIM_GO.
 */
struct spawnfd_page {
	uint64_t claim; /* serial number and enum spawnfd_claim */
	int32_t child;	/* pid of a forked child; the kernel writes it before the child runs */
	int32_t error;	/* errno of the failed step */
	uint64_t index; /* index of the failed step, or SPAWNFD_NO_STEP */
	uint64_t first; /* number of steps in the page; they run before those of the request */
	uint64_t make_default; /* signals to reset to the default action; bit n-1 for signal n */
	uint64_t make_ignored; /* signals to ignore */
	uint64_t mask;	       /* signals to block */
	uint64_t report;       /* SPAWNFD_REPORT_*, in the page of a zygote */
	struct spawnfd_step steps[SPAWNFD_MAX_FIRST];
};

/* The request failed before its first step. */
#define SPAWNFD_NO_STEP UINT32_C(0xffffffff)

/* The zygote reports its progress like the children of the clone launcher: report.rs of
 * spawnfd-child. The owner writes PENDING. The zygote writes EXEC before exec; after a failure it
 * writes the stage, the index and the errno, shifted. */
#define SPAWNFD_REPORT_PENDING (UINT64_C(1) << 63)
#define SPAWNFD_REPORT_EXEC UINT64_C(0)
#define SPAWNFD_REPORT_STAGE_SHIFT 48
#define SPAWNFD_REPORT_INDEX_SHIFT 32

enum spawnfd_stage {
	SPAWNFD_STAGE_DESCRIPTORS = 1,
	SPAWNFD_STAGE_ACTION = 2,
	SPAWNFD_STAGE_CHECK = 4,
	SPAWNFD_STAGE_EXEC = 6
};

#endif
