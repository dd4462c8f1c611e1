import type { Native } from '../native';
export declare const portable: Native;
