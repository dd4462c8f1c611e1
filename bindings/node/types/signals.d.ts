/** The name of a signal, as child_process reports it; empty if it has none. */
export declare function signalName(signal: number): string;
/**
 * The number of a signal.
 *
 * @throws {TypeError} There is no such signal.
 */
export declare function signalNumber(signal: NodeJS.Signals | number): number;
