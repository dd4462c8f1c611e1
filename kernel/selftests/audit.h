/* SPDX-License-Identifier: GPL-2.0-only */
/* Adds audit rules and reads audit records. Without an audit daemon, the kernel writes the records
 * to its log, and the tests read them from /dev/kmsg. */
#ifndef AUDIT_H
#define AUDIT_H

#include "spawn_test.h"
#include <linux/audit.h>
#include <linux/netlink.h>
#include <sys/socket.h>

struct audit {
	int socket, messages;
};

static inline int audit_send(int fd, int type, const void *data, size_t size)
{
	struct {
		struct nlmsghdr head;
		char data[2048];
	} message = {.head = {NLMSG_SPACE(size), type, NLM_F_REQUEST | NLM_F_ACK, 1, 0}};
	struct {
		struct nlmsghdr head;
		struct nlmsgerr error;
		char more[4096];
	} answer;

	memcpy(message.data, data, size);
	if (send(fd, &message, message.head.nlmsg_len, 0) < 0)
		return -errno;
	do
		if (recv(fd, &answer, sizeof(answer), 0) < 0)
			return -errno;
	while (answer.head.nlmsg_type != NLMSG_ERROR);
	return answer.error.error;
}

/* Enables audit and adds the rule. Returns NULL, or the reason why the test must be skipped. */
static inline const char *audit_open(struct audit *audit, const struct audit_rule_data *rule)
{
	struct audit_status on = {.mask = AUDIT_STATUS_ENABLED, .enabled = 1};

	audit->socket = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_AUDIT);
	if (audit->socket < 0 || getuid() != 0)
		return "no audit here";
	audit->messages = open("/dev/kmsg", O_RDONLY | O_NONBLOCK | O_CLOEXEC);
	if (audit->messages < 0 || put_text("/proc/sys/kernel/printk_ratelimit", "0"))
		return "no /dev/kmsg for all that there is to say";
	if (audit_send(audit->socket, AUDIT_SET, &on, sizeof(on)) ||
	    audit_send(audit->socket, AUDIT_ADD_RULE, rule, sizeof(*rule)))
		return "audit does not take a rule";
	return NULL;
}

/* Deletes the rule, waits until all records are in the kernel log, and disables audit. Returns 0 or
 * a negative errno. */
static inline int audit_stop(struct audit *audit, const struct audit_rule_data *rule)
{
	struct audit_status off = {.mask = AUDIT_STATUS_ENABLED, .enabled = 0};
	struct pollfd message = {.fd = audit->messages, .events = POLLIN};
	char text[8192] = "";
	int error;

	lseek(audit->messages, 0, SEEK_END);
	error = audit_send(audit->socket, AUDIT_DEL_RULE, rule, sizeof(*rule));
	/* A kernel thread writes the records to the log in order. The record of the rule's removal
	 * is the last one. */
	while (!error && !strstr(text, "op=remove_rule")) {
		ssize_t length;

		if (poll(&message, 1, TIMEOUT * 500) != 1)
			return -ETIMEDOUT;
		length = read(audit->messages, text, sizeof(text) - 1);
		text[length > 0 ? length : 0] = 0;
	}
	if (!error)
		error = audit_send(audit->socket, AUDIT_SET, &off, sizeof(off));
	put_text("/proc/sys/kernel/printk_ratelimit", "5");
	close(audit->socket);
	return error;
}

/* Counts the records in the whole kernel log that have this type and contain both texts. */
static inline int audit_find(struct audit *audit, const char *type, const char *what,
			     const char *also)
{
	char text[8192];
	ssize_t length;
	int found = 0;

	lseek(audit->messages, 0, SEEK_SET);
	while ((length = read(audit->messages, text, sizeof(text) - 1)) > 0 ||
	       (length < 0 && errno == EPIPE)) {
		text[length > 0 ? length : 0] = 0;
		found += strstr(text, type) && strstr(text, what) && strstr(text, also);
	}
	return found;
}

#endif
