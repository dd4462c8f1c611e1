import { NATIVE, type NativeEnv } from './native';
/**
 * The environment of a program, an immutable value: each method returns a new one.
 *
 * `Env.inherit().deny('*_TOKEN', '*_KEY').set({ LANG: 'C.UTF-8' }).noninteractive()`
 */
export declare class Env {
    #private;
    /** For this package. */
    readonly [NATIVE]: NativeEnv;
    private constructor();
    /** The environment of this process as it is now. For a program on another machine: that of the server there. */
    static inherit(): Env;
    /** No variables. */
    static empty(): Env;
    /** These variables, and no others. */
    static of(variables: Readonly<Record<string, string | undefined>>): Env;
    /** The variables of this process whose names match a pattern: `*` stands for any characters, `?` for one. */
    static only(...patterns: string[]): Env;
    /** Without the variables whose names match a pattern. */
    deny(...patterns: string[]): Env;
    /** With these variables. `undefined` removes one. */
    set(variables: Readonly<Record<string, string | undefined>>): Env;
    /** With variables that stop common tools from prompting, paging and colouring their output. */
    noninteractive(): Env;
    /** The value of a variable. */
    get(name: string): string | undefined;
    /** The variables as an object. */
    toObject(): Record<string, string>;
}
