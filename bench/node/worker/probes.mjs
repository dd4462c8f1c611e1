// SPDX-License-Identifier: MIT OR Apache-2.0
// This process's own state: CPU time, leftover children, open descriptors.

import { readdirSync, readFileSync } from 'node:fs';

/** The milliseconds that children may take to end. The guard process ends one second after its last tree. */
const LINGER_MS = 10_000;
const TICKS_PER_SECOND = 100;
// The fields of /proc/PID/stat after the name: utime, stime, cutime, cstime.
const CPU_FIELDS = [11, 15];

/** The user and system time of this process and of its reaped children, in steps of 10 ms. */
export function cpuSeconds() {
  const stat = readFileSync('/proc/self/stat', 'latin1');
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ');
  return fields.slice(...CPU_FIELDS).reduce((sum, ticks) => sum + Number(ticks), 0) / TICKS_PER_SECOND;
}

function children() {
  return readdirSync('/proc/self/task').flatMap((thread) => {
    try {
      return readFileSync(`/proc/self/task/${thread}/children`, 'latin1').split(' ').filter(Boolean);
    } catch {
      return []; // the thread has ended
    }
  });
}

/** The number of this process's open descriptors. */
export function openFiles() {
  return readdirSync('/proc/self/fd').length;
}

/** Throws if children are left, or if more than `few` descriptors were added since the count of the first round. */
export async function checkLeftovers(who, filesAfterFirst, few) {
  const files = openFiles();
  if (filesAfterFirst !== undefined && files > filesAfterFirst + few) {
    throw new Error(`${who}: ${files} fds open, ${filesAfterFirst} before`);
  }
  const until = performance.now() + LINGER_MS;
  while (children().length > 0 && performance.now() < until) {
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
  const left = children();
  if (left.length > 0) {
    throw new Error(`${who}: leftover children: ${left.join(', ')}`);
  }
}
