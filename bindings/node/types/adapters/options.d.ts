import type { StartOptions } from '../options';
import type { Result } from '../result';
/** The options of a command that a runtime does not decide. */
export type CommandOptions = Pick<StartOptions, 'actions' | 'drain' | 'grace' | 'idleTimeout' | 'leftovers' | 'limiter' | 'limits' | 'outputLimit' | 'tree'>;
/** The line that says why the library ended a command. Empty if the command ended by itself. */
export declare function stopLine({ stop, limit }: Result): string;
