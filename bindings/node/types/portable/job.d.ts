import { Awaited, type NativeEvent, type NativeFailure, type NativeJob } from '../native';
import type { Program, StreamName } from './program';
import type { PortableQueue } from './queue';
import type { Request } from './request';
import { PortableResult } from './result';
export declare class PortableJob implements NativeJob {
    #private;
    constructor(program: Program, request: Request);
    get pid(): number;
    /** Takes output of the program. */
    take(stream: StreamName, bytes: Buffer): void;
    end(result: PortableResult): void;
    wait(queue: PortableQueue, key: number, awaited: Awaited): void;
    result(): PortableResult | null;
    takeEvents(max: number): NativeEvent[];
    setLines(max?: number): void;
    hold(hold: boolean): void;
    read(since: number): {
        data: Buffer;
        next: number;
        lost: number;
    };
    write(input: unknown): number | NativeFailure;
    closeStdin(): void;
    stop(grace?: number): void;
    signal(signal: number, tree: boolean): void;
    resize(): void;
}
