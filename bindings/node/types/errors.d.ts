import type { Result } from './result';
/** A program could not be found, started, supervised or waited for. A failed start leaves no process. */
export declare class SpawnError extends Error {
    readonly name = "SpawnError";
    /** Stage, system call and errno, in the notation of strace. */
    readonly detail: string;
    /** The name of the errno, such as `ENOENT`. */
    readonly code: string;
    /** The negative errno, as in the errors of Node. */
    readonly errno: number;
    /** The system call that failed, with its arguments. */
    readonly syscall: string;
    /** The step that failed: `template`, `exec`, `cwd`, `action`, … */
    readonly stage: string;
    /** The index of the failed action, or `undefined`. */
    readonly action: number | undefined;
}
/** The executable of a template was replaced or has changed. `code` is `ESTALE`. */
export declare class StaleTemplate extends SpawnError {
}
/** A run was not ok; `Result.check()` throws this. */
export declare class ExitError extends Error {
    readonly name = "ExitError";
    readonly result: Result;
}
/** The `signal` of a call was aborted. `result` has the output until then, if the program had started. */
export declare class AbortError extends Error {
    readonly name = "AbortError";
    readonly code = "ABORT_ERR";
    readonly result: Result | undefined;
}
/** This system cannot do what the call asks for: without Linux, `child_process` starts the programs. */
export declare class Unsupported extends Error {
    readonly name = "Unsupported";
    readonly code = "ERR_UNSUPPORTED";
}
