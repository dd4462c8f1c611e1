/**
 * The service `ChildProcessSpawner` of Effect 4. An ES module, as Effect is.
 *
 * @packageDocumentation
 */
import * as Layer from 'effect/Layer';
import * as Spawner from 'effect/process/ChildProcessSpawner';
/**
 * Provides `ChildProcessSpawner`. It needs no other service.
 *
 * The end of a command's scope ends its process tree: `killSignal`, and SIGKILL after `forceKillAfter`, by default two
 * seconds. A program that no stream of the handle reads blocks after 1 MiB of output. The options `additionalFds` and
 * `detached`, and `unref`, are not supported: the first and the last are errors.
 */
export declare const layer: Layer.Layer<Spawner.ChildProcessSpawner>;
