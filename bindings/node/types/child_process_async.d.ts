import node = require('node:child_process');
import { type Command } from './child_process_call';
import * as native from './native';
/** A command for the native half. */
export declare function programStart(command: Command, stdio: number[]): native.ProgramStart;
export declare const spawn: typeof node.spawn;
export declare const execFile: typeof node.execFile;
export declare const exec: typeof node.exec;
