export type Options = Record<string, unknown>;
/** The arguments of a start, in the form that Node's ChildProcess takes. */
export interface Command {
    file: string;
    args: string[];
    cwd: string | undefined;
    envPairs: string[];
    detached: boolean;
    uid: number | undefined;
    gid: number | undefined;
}
/** Why Node's own code started a program. */
export type DelegationReason = 'ipc' | 'arguments' | 'unsupported';
export declare const counts: {
    started: number;
    delegated: {
        ipc: number;
        arguments: number;
        unsupported: number;
    };
};
export declare const MAJOR: number;
/** In bytes. */
export declare const DEFAULT_MAX_BUFFER: number;
export declare const isAbsent: (value: unknown) => value is undefined | null;
export declare const isString: (value: unknown) => value is string;
export declare const isInteger: (value: unknown) => value is number;
export declare const isObject: (value: unknown) => value is Options;
export declare const isTimeout: (value: unknown) => boolean;
export declare const isSize: (value: unknown) => boolean;
/** A copy of the options. It inherits none from Object.prototype. */
export declare function copied(options: unknown): Options;
/** The arguments and the options of a call that may have only one of them. */
export declare function parted(args: unknown, options: unknown): [unknown[], Options] | undefined;
/** The number of the signal that ends a program. */
export declare function killSignalOf(signal: unknown): number | undefined;
/** The command of a call. Undefined: only Node knows the arguments, or reports them. */
export declare function commandOf(file: unknown, args: unknown[], options: Options): Command | undefined;
/** The error of a system call, as Node makes it. */
export declare function errnoError(errno: number, syscall: string, command?: {
    file: string;
    args: string[];
}): Error;
