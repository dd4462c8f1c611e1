import type { OptionSpec } from './options';
/** The exception for an argument that is not valid. checked() makes a TypeError of it. */
export declare function wrong(message: string): Error;
/** Describes a value in an error text. */
export declare function shown(value: unknown): string;
export declare function integer(value: unknown, name: string): number;
/** Checks a number of milliseconds. Infinity is no end. */
export declare function duration(value: unknown, name: string): number;
export declare function data(value: unknown, name: string): Buffer;
/** Checks text for the operating system: a string or bytes. */
export declare function text(value: unknown, name: string): string;
export declare function object(value: unknown, name: string, expected: string): Record<string, unknown>;
/** Checks and converts the value of an option. `name` is the name that the error text has. */
export declare function optionValue(option: OptionSpec, name: string, value: unknown): unknown;
