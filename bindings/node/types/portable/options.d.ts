/** An option of run() or start(). The default of a duration is in milliseconds. */
export interface OptionSpec {
    readonly name: string;
    readonly kind: string;
    readonly calls: readonly string[];
    /** Whether null is a value. */
    readonly optional: boolean;
    readonly default: unknown;
    /** The words that are values. */
    readonly words: readonly string[];
}
export declare const OPTIONS: readonly OptionSpec[];
/** The variables of Env.noninteractive(). null removes one. */
export declare const NONINTERACTIVE: readonly (readonly [string, string | null])[];
