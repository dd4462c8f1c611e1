/**
 * A stdio client transport for the TypeScript SDK of the Model Context Protocol, in place of the SDK's own.
 *
 * @packageDocumentation
 */
import { Readable, type Stream } from 'node:stream';
import type { Result } from '../result';
/** How to start a server. The names are those of the SDK. */
export interface StdioServerParameters {
    /** The program, a path or a name to search in PATH. */
    command: string;
    /** The arguments of the program. */
    args?: readonly string[];
    /** Variables in addition to `getDefaultEnvironment()`. */
    env?: Readonly<Record<string, string>>;
    /**
     * The server's standard error. `pipe`: the property `stderr` is a stream of it. A stream, such as `process.stderr`:
     * the server writes to its descriptor. If the stream has no descriptor, the transport writes to the stream.
     * @defaultValue `inherit`
     */
    stderr?: 'inherit' | 'pipe' | 'overlapped' | 'ignore' | Stream | number;
    /** The server's working directory. */
    cwd?: string;
    /**
     * The largest message in bytes. A larger one is an error, and closes the transport.
     * @defaultValue 10485760
     */
    maxBufferSize?: number;
    /**
     * The time in milliseconds that `close()` gives the server to exit after the end of its input, and again after SIGTERM.
     * @defaultValue 2000
     */
    grace?: number;
}
/** A JSON-RPC message. The SDK's types describe the members. */
export interface Message {
    jsonrpc: '2.0';
}
/** The variables of this process that every server gets, as in the SDK. Values that are shell functions are left out. */
export declare function getDefaultEnvironment(): Record<string, string>;
/**
 * A client transport that starts a server and exchanges messages over its standard input and output.
 *
 * The end of the transport ends the server's process tree: by `close()`, by the server's exit, and by the end of this
 * process. A transport starts one server, once.
 */
export declare class StdioClientTransport {
    #private;
    onclose?: (() => void) | undefined;
    onerror?: ((error: Error) => void) | undefined;
    onmessage?: ((message: Message) => void) | undefined;
    /** Stdio has no sessions. */
    sessionId?: string | undefined;
    constructor(server: StdioServerParameters);
    /**
     * The server's standard error, if the parameter `stderr` is `pipe`. A server never blocks because this stream is not
     * read: the stream drops what the server writes while 1 MiB is unread. So does a stream without a descriptor that the
     * parameter gives.
     */
    get stderr(): Readable | null;
    /** The process id of the server while it runs. */
    get pid(): number | null;
    /** The result of the server once it has ended: why, its exit code, and the end of its standard error. */
    get result(): Result | undefined;
    /**
     * Starts the server.
     *
     * @throws {SpawnError} The program could not be started.
     */
    start(): Promise<void>;
    /** Sends a message, and waits until all of it is queued for the server. */
    send(message: Message): Promise<void>;
    /**
     * Closes the server's input, and waits for its end. A server that does not exit gets SIGTERM with its process tree, and
     * then SIGKILL. Later calls wait for the same end.
     */
    close(): Promise<void>;
}
