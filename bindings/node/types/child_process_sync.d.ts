import node = require('node:child_process');
export declare const spawnSync: typeof node.spawnSync;
export declare const execFileSync: typeof node.execFileSync;
export declare const execSync: typeof node.execSync;
