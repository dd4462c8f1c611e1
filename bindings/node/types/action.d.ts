import { NATIVE } from './native';
/** A step of the child before it executes the program. The functions of `actions` make them. */
export declare class Action {
    /** For this package. */
    readonly [NATIVE]: readonly [name: string, values: object];
}
