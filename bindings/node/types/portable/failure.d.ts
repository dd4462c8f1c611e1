import type { NativeFailure } from '../native';
import type { Request } from './request';
export declare function failure(code: string, stage: string, syscall: string, message: string): NativeFailure;
/** The failure of a start, from the error of child_process. */
export declare function startFailure(error: NodeJS.ErrnoException, { program, cwd }: Request): NativeFailure;
