/** A program and its arguments. Items are strings, or bytes if they are not UTF-8. */
export type Argv = readonly (string | Uint8Array)[];
/** The option of every asynchronous call. */
export interface Abortable {
    /** Ends the program and its process tree when it is aborted; the call then fails with an AbortError. */
    signal?: AbortSignal;
}
