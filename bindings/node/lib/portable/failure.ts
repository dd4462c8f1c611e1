// SPDX-License-Identifier: MIT OR Apache-2.0
// The errors of starts.

import { statSync } from 'node:fs';
import { constants } from 'node:os';
import type { NativeFailure } from '../native';
import type { Request } from './request';

export function failure(code: string, stage: string, syscall: string, message: string): NativeFailure {
  const errno = -(constants.errno[code as keyof typeof constants.errno] ?? 0);
  return { message, detail: `${stage}: ${syscall} = ${code}`, code, errno, stage, syscall };
}

function isDirectory(path: string): boolean {
  try {
    return statSync(path).isDirectory();
  } catch {
    return false;
  }
}

/** The failure of a start, from the error of child_process. */
export function startFailure(error: NodeJS.ErrnoException, { program, cwd }: Request): NativeFailure {
  const { code = 'EINVAL', syscall = 'spawn' } = error;
  if (cwd !== null && ['ENOENT', 'ENOTDIR'].includes(code) && !isDirectory(cwd)) {
    return failure(code, 'cwd', syscall, `no such directory: ${cwd}`);
  }
  const isPath = /[/\\]/.test(program);
  if (code === 'ENOENT') {
    return failure(code, 'template', syscall, isPath ? `no such program: ${program}` : `${program}: not found in PATH`);
  }
  return code === 'EACCES'
    ? failure(code, 'template', syscall, `permission denied: ${program}`)
    : failure(code, 'exec', syscall, `${program} cannot be started: ${error.message}`);
}
