/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The protocol between the owner of a parked process and the process itself. The two share a page
 * and an unnamed SOCK_SEQPACKET pair. Both run on one machine and are built together, so every
 * number is in the byte order of the machine.
 *
 * This file is the only definition of the messages. A script of the repository, protocol.py, reads
 * it and writes the same numbers and layouts for Rust. The script accepts these declarations only:
 *
 *     #define SPAWNFD_NAME value     a number, INTn_C(n), UINTn_C(n), 'c', "text", or operators
 *     enum spawnfd_tag               members with a common prefix; NAME_COUNT ends a list
 *     struct spawnfd_tag             intN_t and uintN_t; the last field may be an array of structs
 *
 * A comment belongs to the declaration on its line, or else to the next one. A field whose comment
 * begins with `enum spawnfd_tag` holds a member of that enum. Structs have no padding.
 */
#pragma once

#include <stdint.h>

/* The version of the protocol: the first field of every message. */
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

/* The environment variable by which the owner tells a program to park. Its value has the fields of
 * enum spawnfd_park_field, separated by colons. Descriptors, device and inode are decimal. */
#define SPAWNFD_PARK_VARIABLE "SPAWNFD_PARK"
/* The environment variable with the modules that the program imports before it parks. Commas
 * separate the names. */
#define SPAWNFD_PRELOAD_VARIABLE "SPAWNFD_PRELOAD"
/* The environment variable with the entry point: the script or module that every request runs. Its
 * value is the absolute path of a script, or "-m " and the name of a module. */
#define SPAWNFD_ENTRY_VARIABLE "SPAWNFD_ENTRY"
/* The environment variable that says that every request has the working directory in which the
 * process parks. Its value is "1". Without this variable, each request may have another one. */
#define SPAWNFD_SAME_DIRECTORY_VARIABLE "SPAWNFD_SAME_DIRECTORY"

/* The fields of the value of SPAWNFD_PARK_VARIABLE, in their order. */
enum spawnfd_park_field {
	SPAWNFD_PARK_SOCKET, /* descriptor of the parked process's end of the socket pair */
	SPAWNFD_PARK_OWNER,  /* descriptor of a pidfd that refers to the owner */
	SPAWNFD_PARK_OBJECT, /* descriptor of the shared object that LD_PRELOAD loads */
	SPAWNFD_PARK_PAGE,   /* descriptor of the shared page */
	/* Device of the executable that parks. Any other executable runs unchanged. */
	SPAWNFD_PARK_DEVICE,
	SPAWNFD_PARK_INODE,  /* inode of the executable that parks */
	SPAWNFD_PARK_KIND,   /* enum spawnfd_kind: the point at which the program parks */
	SPAWNFD_PARK_MODE,   /* enum spawnfd_mode: how the owner uses the parked process */
	SPAWNFD_PARK_OUTPUT, /* descriptor of a file for output before parking; may be absent */
	SPAWNFD_PARK_COUNT
};

/* The point at which a program parks. */
enum spawnfd_kind {
	SPAWNFD_KIND_MAIN = 'm',   /* the program parks at the start of main() */
	SPAWNFD_KIND_PYTHON = 'p', /* the program parks after CPython has initialized */
	SPAWNFD_KIND_NODE = 'n'	   /* the program parks after Node.js has initialized */
};

/* How the owner uses a parked process. */
enum spawnfd_mode {
	SPAWNFD_MODE_RESERVE = 'r', /* the parked process itself becomes the program */
	SPAWNFD_MODE_SANDBOX = 's', /* as RESERVE, but a sandbox program starts the process */
	SPAWNFD_MODE_FORK = 'f',    /* the parked process forks, and a child becomes the program */
	/* Only the zygote has this mode. It reports whether ld.so would preload the shared object
	 * into a program that the owner starts in place of the zygote. */
	SPAWNFD_MODE_PROBE = 'p'
};

/* The numbers of the descriptors that the zygote inherits. The zygote is a parked process without
 * libc that can execute any program. */
enum spawnfd_zygote {
	SPAWNFD_ZYGOTE_SOCKET = 3,
	SPAWNFD_ZYGOTE_OWNER = 4,
	SPAWNFD_ZYGOTE_PAGE = 5
};

/* The content of a reply. */
enum spawnfd_reply_kind {
	/* The process is parked. The text has names of variables, an empty string, names of files,
	 * an empty string, names of modules, an empty string, /proc/thread-self/status, and the
	 * security label, which may be empty. The program's first import path must have none of the
	 * modules. A forked child sends its pidfd and no text. */
	SPAWNFD_REPLY_PARKED,
	/* The process cannot park. The text is the reason. */
	SPAWNFD_REPLY_CANNOT
};

/* The only message from a parked process to its owner. A text follows this struct. */
struct spawnfd_reply {
	uint32_t version;
	uint32_t kind;		/* enum spawnfd_reply_kind: whether the process is parked */
	int32_t pid;		/* pid of the parked process */
	uint32_t securebits;	/* secure bits of the parked process; see capabilities(7) */
	uint64_t private_bytes; /* size of the parked process's private memory, in bytes */
};

/* --- requests -----------------------------------------------------------------------------------
 */

/*
 * A message from the owner to a parked process. After this struct, the message has the steps, the
 * checks, `keep` descriptor numbers (int32_t), and the strings. The strings are argv, environ, and
 * paths, each with its NUL, and the bytes that some steps need.
 */
struct spawnfd_request {
	uint32_t version;
	uint32_t serial;      /* the request's number; see struct spawnfd_page */
	uint32_t steps;	      /* number of steps in the message */
	uint32_t sources;     /* number of descriptors that come with the message */
	uint32_t keep;	      /* number of descriptors above 2 that stay open */
	uint32_t argc;	      /* number of arguments */
	uint32_t envc;	      /* number of environment variables */
	uint32_t argv_length; /* size of argv, in bytes */
	uint32_t env_length;  /* size of environ, in bytes */
	uint32_t strings;     /* size of all strings, in bytes */
	int32_t above;	      /* no step names this descriptor number or a higher one */
	uint32_t flags;	      /* bits of SPAWNFD_FLAGS */
	int32_t program;      /* the source to execute, or SPAWNFD_NO_SOURCE */
	uint32_t path;	      /* path of the program to execute: an offset into the strings */
	uint32_t checks;      /* number of checks in the message */
	/* Bit n: a seccomp filter kills the process for member n of enum spawnfd_call. */
	uint32_t killed;
};

/* The calls of a parked process for which a seccomp filter may kill the process. */
enum spawnfd_call {
	SPAWNFD_CALL_CLOSE_RANGE, /* replaced by close() */
	SPAWNFD_CALL_OPENAT2,	  /* replaced by openat(), unless `resolve` is set */
	SPAWNFD_CALL_STATX,	  /* replaced by newfstatat() */
	SPAWNFD_CALL_FACCESSAT2,  /* replaced by faccessat(), which checks the real ids */
	SPAWNFD_CALL_EXECVEAT	  /* not replaced: exec fails with EPERM */
};

/* The program gets the environment of the parked process. */
#define SPAWNFD_FLAG_OWN_ENVIRONMENT UINT32_C(1)
/* The parked process forks a child, and the child waits for a request of its own. The message
 * carries the sources of enum spawnfd_fork_source and has no other content. */
#define SPAWNFD_FLAG_FORK UINT32_C(2)
/* The forked child reports the size of its private memory to the owner. */
#define SPAWNFD_FLAG_MEASURE UINT32_C(4)
#define SPAWNFD_FLAGS (SPAWNFD_FLAG_OWN_ENVIRONMENT | SPAWNFD_FLAG_FORK | SPAWNFD_FLAG_MEASURE)

/* Stands for a missing source. */
#define SPAWNFD_NO_SOURCE INT32_C(-1)

/* The descriptors in a fork request: the new child's own connection to the owner. */
enum spawnfd_fork_source { SPAWNFD_FORK_SOCKET, SPAWNFD_FORK_PAGE, SPAWNFD_FORK_COUNT };

/* The operation of one step. `a`, `b`, `text` and `x` to `z` are fields of struct spawnfd_step. A
 * source is an index of the message's descriptors. `text` is an offset into the strings. */
enum spawnfd_op {
	SPAWNFD_OP_CLOSE_RANGE, /* closes descriptors `x` to `y` */
	/* Opens the path at `text` as descriptor `b`. `a` is the source of the directory, or
	 * SPAWNFD_NO_SOURCE. `x`, `y` and `z` are flags, mode and resolve of struct open_how. */
	SPAWNFD_OP_OPEN,
	SPAWNFD_OP_TCSETPGRP,	  /* puts the process group in the foreground of terminal `a` */
	SPAWNFD_OP_OOM_SCORE_ADJ, /* writes `a` to /proc/self/oom_score_adj */
	SPAWNFD_OP_CGROUP,	  /* enters the cgroup whose directory is source `a` */
	SPAWNFD_OP_REPLACE,	  /* duplicates source `a` to `b` if `b` is open on the same file */
	SPAWNFD_OP_CAPABILITIES,  /* limits the sets to the struct spawnfd_capabilities at `text` */
	/* Makes system call `a` with the arguments `x`, `y`, `z`, 0, 0 and 0. `b` has the kind of
	 * each argument. `text` is the size of the data of a SPAWNFD_ARGUMENT_TEXT, in bytes. */
	SPAWNFD_OP_CALL,
	SPAWNFD_OP_COUNT
};

/* The kind of one argument of a system call: two bits of the step's `b`. The lowest two bits are
 * for the first argument. */
enum spawnfd_argument {
	SPAWNFD_ARGUMENT_NUMBER, /* the argument is this number itself */
	SPAWNFD_ARGUMENT_SOURCE, /* the argument is the descriptor of this source */
	SPAWNFD_ARGUMENT_TEXT,	 /* the argument is the address of the string at this offset */
	SPAWNFD_ARGUMENT_DATA	 /* the last argument is the address of the step's `z` and `w` */
};

/* The number of arguments in a step, and the size of an argument's kind in bits. */
#define SPAWNFD_ARGUMENTS 3
#define SPAWNFD_ARGUMENT_BITS 2

struct spawnfd_step {
	uint16_t op;	/* enum spawnfd_op: says which of the other fields the step uses */
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

/* A condition that must hold immediately before exec. */
enum spawnfd_check_kind {
	SPAWNFD_CHECK_SAME,	   /* the path names this file, unchanged */
	SPAWNFD_CHECK_SAME_SOURCE, /* the source to execute is this file, unchanged */
	SPAWNFD_CHECK_ABSENT,	   /* the path names no file that a PATH search would accept */
	SPAWNFD_CHECK_COUNT
};

/* A condition, and the identity of the file that the condition requires. The fields have the units
 * of struct statx. */
struct spawnfd_check {
	uint32_t kind; /* enum spawnfd_check_kind: the condition */
	uint32_t path; /* the file's path: an offset into the strings */
	uint32_t device_major;
	uint32_t device_minor;
	uint32_t mode;
	uint32_t owner;
	uint32_t group;
	uint32_t ctime_nanoseconds;
	uint32_t mtime_nanoseconds;
	uint32_t unused; /* keeps the struct free of padding */
	uint64_t inode;
	uint64_t size;
	int64_t ctime;
	int64_t mtime;
};

/* --- the shared page ----------------------------------------------------------------------------
 */

#define SPAWNFD_PAGE_SIZE 4096

/* The state of a request. */
enum spawnfd_handshake {
	SPAWNFD_HANDSHAKE_REQUESTED, /* the owner has sent the request */
	SPAWNFD_HANDSHAKE_COMMITTED, /* the owner confirms the request */
	SPAWNFD_HANDSHAKE_WITHDRAWN, /* the owner withdraws the request */
	SPAWNFD_HANDSHAKE_TAKEN,     /* the parked process carries the request out */
	SPAWNFD_HANDSHAKE_BECAME,    /* the parked process has become the program */
	SPAWNFD_HANDSHAKE_FAILED,    /* a step failed, and the parked process exits */
	SPAWNFD_HANDSHAKE_REFUSED    /* the request is invalid; the parked process did nothing */
};

/* The handshake word is the serial number of the request * SPAWNFD_HANDSHAKE_STATES + the state. */
#define SPAWNFD_HANDSHAKE_STATES 8

/* The maximum number of steps in the page. */
#define SPAWNFD_MAX_FIRST 24

/*
 * The page that owner and parked process share. The owner sends a request before it has finished
 * comparing itself with the parked process. During the comparison the parked process prepares,
 * without visible effect. The owner then writes the result of the comparison into the page and sets
 * the handshake to SPAWNFD_HANDSHAKE_COMMITTED.
 */
struct spawnfd_page {
	uint64_t handshake; /* serial number and enum spawnfd_handshake */
	int32_t child;	    /* pid of a forked child; the kernel writes it before the child runs */
	int32_t unused;	    /* keeps the struct free of padding */
	uint64_t first;	    /* number of steps in the page; they run before those of the request */
	uint64_t make_default; /* signals to reset to the default action; bit n-1 for signal n */
	uint64_t make_ignored; /* signals to ignore */
	uint64_t mask;	       /* signals to block */
	uint64_t report;       /* progress and failure: SPAWNFD_REPORT_* */
	struct spawnfd_step steps[SPAWNFD_MAX_FIRST];
};

/* The parts of `report` in struct spawnfd_page. The owner writes PENDING. Before each stage, the
 * parked process writes PENDING with the stage and the index, both shifted. After a failure it
 * writes the same with an errno instead of PENDING. A zygote writes EXEC before exec. A child of a
 * cold start reports in the same way: report.rs of spawnfd-child. */
#define SPAWNFD_REPORT_PENDING (UINT64_C(1) << 63)
#define SPAWNFD_REPORT_EXEC UINT64_C(0)
#define SPAWNFD_REPORT_STAGE_SHIFT 48
#define SPAWNFD_REPORT_INDEX_SHIFT 32

enum spawnfd_stage {
	SPAWNFD_STAGE_DESCRIPTORS = 1,
	SPAWNFD_STAGE_ACTION = 2, /* the index is that of the step */
	SPAWNFD_STAGE_CHECK = 4,  /* the index is that of the check */
	SPAWNFD_STAGE_EXEC = 6
};
