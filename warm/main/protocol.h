/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What owner and parked process say to each other, over an unnamed SOCK_SEQPACKET pair, one message
 * at a time. Both run on one machine and are built together: numbers are in its byte order. The
 * owner's half is crates/spawnfd/src/warm/wire.rs.
 */
#ifndef SPAWNFD_PROTOCOL_H
#define SPAWNFD_PROTOCOL_H

#include <stdint.h>

#define SPAWNFD_PROTOCOL 1
/* The longest message, in bytes. A longer request is the owner's to start cold. */
#define SPAWNFD_MAX_MESSAGE (128 << 10)
/* The most descriptors in one message: SCM_MAX_FD. */
#define SPAWNFD_MAX_DESCRIPTORS 253

/* What one step of a request does; `a` and `b` as noted, `text` an offset into the strings. */
enum spawnfd_op {
	SPAWNFD_PLACE,	     /* a: source, b: number */
	SPAWNFD_DUP2,	     /* a: from, b: to; equal: not close-on-exec */
	SPAWNFD_CLOSE,	     /* a: number */
	SPAWNFD_CLOSE_RANGE, /* x: first, y: last */
	SPAWNFD_OPEN, /* a: source of the directory or -1, b: number, text: path, x y z: open_how */
	SPAWNFD_OPEN_NULL, /* b: number */
	SPAWNFD_CHDIR,	   /* text: path */
	SPAWNFD_FCHDIR,	   /* a: source */
	SPAWNFD_UMASK,	   /* a: mask */
	SPAWNFD_SETSID,
	SPAWNFD_SETPGID,   /* a: group */
	SPAWNFD_TCSETPGRP, /* a: number */
	SPAWNFD_CTTY,	   /* a: number */
	SPAWNFD_RLIMIT,	   /* a: resource, x: soft, y: hard */
	SPAWNFD_NICE,	   /* a: nice value */
	SPAWNFD_SCHEDULER, /* a: policy, b: priority */
	SPAWNFD_NO_NEW_PRIVS,
	SPAWNFD_OOM_SCORE_ADJ, /* a: value */
	SPAWNFD_CGROUP,	       /* a: source, the cgroup's directory */
	SPAWNFD_LANDLOCK,      /* a: source, a ruleset */
	SPAWNFD_REPLACE,       /* a: source, b: number; only where that is the same file */
	/* Before an exec only. */
	SPAWNFD_CHROOT,	   /* text: path */
	SPAWNFD_AFFINITY,  /* text: x bytes of mask */
	SPAWNFD_USER_IDS,  /* a: real, b: effective, x: saved */
	SPAWNFD_GROUP_IDS, /* the same */
	SPAWNFD_GROUPS,	   /* text: x bytes of numbers */
	SPAWNFD_KEEP_CAPABILITIES,
	SPAWNFD_CAPABILITIES, /* text: x bytes, a struct spawnfd_capabilities */
	SPAWNFD_OPS
};

struct spawnfd_step {
	uint16_t op;
	/* What a failure is reported under. */
	uint16_t index;
	int32_t a;
	int32_t b;
	uint32_t text;
	uint64_t x;
	uint64_t y;
	uint64_t z;
};

/* Bit n for capability n. */
struct spawnfd_capabilities {
	uint64_t effective, permitted, inheritable, bounding, ambient;
};

/* What must hold right before an exec. */
enum spawnfd_check_kind {
	/* The path names that file, unchanged. */
	SPAWNFD_SAME,
	/* The source to execute is that file, unchanged. */
	SPAWNFD_SAME_SOURCE,
	/* The path names nothing that a search would take. */
	SPAWNFD_ABSENT,
	SPAWNFD_CHECKS
};

struct spawnfd_check {
	uint32_t kind;
	/* An offset into the strings. */
	uint32_t path;
	/* Of the file: as struct statx has it. */
	uint32_t device[2];
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
_Static_assert(sizeof(struct spawnfd_check) == 72, "as CHECK in wire.rs");

/* Then the steps, the checks, `keep` numbers (int32_t), and the strings: argv, environ, paths; each
 * with its NUL, and what steps have in bytes. */
struct spawnfd_request {
	uint32_t protocol;
	/* Which one it is; see struct spawnfd_page. */
	uint32_t serial;
	uint32_t steps;
	uint32_t sources;
	uint32_t keep;
	uint32_t argc;
	uint32_t envc;
	/* Bytes of argv, of environ, and of all strings. */
	uint32_t argv_length;
	uint32_t env_length;
	uint32_t strings;
	/* No step names a number from here on. */
	int32_t above;
	uint32_t flags;
	/* For who is to execute something: the source that it is, or -1, and its path. */
	int32_t program;
	uint32_t path;
	uint32_t checks;
	uint32_t unused;
};
/* The environment stays what it is. */
#define SPAWNFD_OWN_ENVIRONMENT 1u
/* Mode fork: a child is to be born that waits, with the socket and the page that come with this.
 * Nothing else is asked. */
#define SPAWNFD_FORK 2u
/* The child is to say how much memory is its own. */
#define SPAWNFD_MEASURE 4u
#define SPAWNFD_FLAGS 7u

enum spawnfd_word {
	/* Ready for requests. Text: names of variables, an empty string, files, an empty string. A
	 * child says it without text, and sends its pidfd. */
	SPAWNFD_PARKED,
	/* Cannot be parked. Text: why. */
	SPAWNFD_CANNOT
};

/* What a process says of itself, once. Then text, if any. */
struct spawnfd_reply {
	uint32_t protocol;
	uint32_t word;
	int32_t pid;
	uint32_t unused;
	uint64_t private_bytes;
};

/* The most steps that come before those of a request. */
#define SPAWNFD_MAX_FIRST 24

/*
 * A page that both have. Its first word says where a request stands: the serial number times 8,
 * plus one of the states below. The owner sends a request before he has finished comparing himself
 * with the parked process, so that this one gets ready meanwhile; nothing that shows is done before
 * he has said go. What he has found goes with that word.
 */
struct spawnfd_page {
	uint64_t claim;
	/* Of a child that is forked: its number, written by the kernel as it is born. */
	int32_t child;
	/* Of a step that failed: its error, and its index. */
	int32_t error;
	uint64_t index;
	/* How many of the steps there are. */
	uint64_t first;
	/* Signal n is bit n-1: to be made default, to be ignored; the mask. */
	uint64_t make_default;
	uint64_t make_ignored;
	uint64_t mask;
	/* What became of who is to execute something: see SPAWNFD_REPORT_EXEC. */
	uint64_t report;
	struct spawnfd_step steps[SPAWNFD_MAX_FIRST];
};

/* As children of the clone launcher report: crates/spawnfd-child/src/report.rs. */
#define SPAWNFD_REPORT_EXEC UINT64_C(0)
#define SPAWNFD_REPORT_FAILED(stage, index, error)                                                 \
	((uint64_t)(stage) << 48 | (uint64_t)(index) << 32 | (uint32_t)(error))
enum spawnfd_stage {
	SPAWNFD_AT_DESCRIPTORS = 1,
	SPAWNFD_AT_ACTION = 2,
	SPAWNFD_AT_CHECK = 4,
	SPAWNFD_AT_EXEC = 6
};

enum spawnfd_state {
	/* Sent. */
	SPAWNFD_OFFERED,
	/* By the owner: it is to be carried out. */
	SPAWNFD_GO,
	/* By the owner: it is not to be. */
	SPAWNFD_WITHDRAWN,
	/* By the parked process, as is what follows: it is being carried out. */
	SPAWNFD_TAKEN,
	/* It is the program. */
	SPAWNFD_BECAME,
	/* A step failed; it is gone. */
	SPAWNFD_FAILED,
	/* Nothing was done: the request is not understood. */
	SPAWNFD_REFUSED
};

#endif
