import type { NativeEnv } from '../native';
export declare class PortableEnv implements NativeEnv {
    #private;
    /** The variables of an object; null: those of this process. */
    constructor(given: unknown);
    keepOnly(patterns: string[]): PortableEnv;
    deny(patterns: string[]): PortableEnv;
    set(given: unknown): PortableEnv;
    noninteractive(): PortableEnv;
    get(name: string): string | null;
    entries(): [string, string][];
    toObject(): Record<string, string>;
}
