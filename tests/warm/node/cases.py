# SPDX-License-Identifier: MIT OR Apache-2.0
# ruff: noqa: E501 (programs, each on its line)
"""Programs whose warm and cold output is compared byte by byte."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# This program prints all state that a program can read and that is the same in two cold runs.
STATE = r"""
const fs = require('fs'), os = require('os'), v8 = require('v8');
const read = (path) => fs.readFileSync(path, 'utf8');
const show = (name, value) => console.log(name, require('util').inspect(value, {
  depth: 4, maxArrayLength: 1000, breakLength: 100, getters: false }));
const active = process.getActiveResourcesInfo();
show('flags', [active, Error.stackTraceLimit, require('async_hooks').executionAsyncId(),
  require('async_hooks').triggerAsyncId()]);
show('argv', process.argv);
show('argv0', [process.argv0, process.title, process.execPath, process.execArgv]);
show('global', Reflect.ownKeys(globalThis).map((k) =>
  [String(k), Object.keys(Object.getOwnPropertyDescriptor(globalThis, k)).join()]));
show('process', Reflect.ownKeys(process).map((k) =>
  [String(k), JSON.stringify(Object.getOwnPropertyDescriptor(process, k).enumerable), typeof process[k]]));
show('values', ['_eval', '_print_eval', '_preload_modules', '_exiting', 'exitCode', 'connected', 'debugPort',
  'features', 'release', 'versions', 'config', 'domain', 'moduleLoadList', 'allowedNodeEnvironmentFlags']
  .map((k) => [k, process[k]]));
show('events', [process._events, process._eventsCount, process.eventNames()]);
show('env', process.env);
show('where', [process.cwd(), process.umask(), process.getuid(), process.getgroups(), os.availableParallelism()]);
const files = () => fs.readdirSync('/proc/self/fd').map((n) => {
  try {
    return [n, fs.readlinkSync('/proc/self/fd/' + n).replace(/:\[\d+\]/, ''),
      /flags:\s*(\d+)/.exec(read('/proc/self/fdinfo/' + n))[1]];
  } catch { return [n]; }
});
// When a thread of V8 returns memory, malloc opens a file. The loop waits until that file is closed.
let open = files();
while (open.some((file) => file[1] === '/proc/sys/vm/overcommit_memory')) open = files();
show('files', open);
show('next', fs.openSync('/dev/null'));
show('cmdline', [read('/proc/self/cmdline'), read('/proc/self/environ'), read('/proc/self/comm')]);
show('limits', read('/proc/self/limits'));
show('status', read('/proc/self/status').split('\n').filter((l) =>
  /^(Name|Umask|Sig(?!Q)|Shd|Cap|NoNew|Seccomp|Cpus_allowed:|NSpid|FDSize|THP|Dumpable)/.test(l)
  && !/^(NSpid)/.test(l)));
// The list leaves out the number of threads, because V8 may just have started or ended one. It also leaves out threads
// that libc is just starting, which block all signals.
const threads = fs.readdirSync('/proc/self/task').flatMap((t) => {
  let status;
  // A thread of V8 may have ended since the directory was listed.
  try { status = read(`/proc/self/task/${t}/status`); } catch { return []; }
  return [[/Name.*/.exec(status), /SigBlk.*/.exec(status), /Cpus_allowed:.*/.exec(status)].join()];
});
show('threads', [...new Set(threads)].filter((t) => !/SigBlk:\tfffffff[ef]fffbfeff/.test(t)).sort());
show('oom', [read('/proc/self/oom_score_adj'), read('/proc/self/timerslack_ns'), read('/proc/self/coredump_filter')]);
show('heap', [v8.getHeapStatistics().heap_size_limit, v8.getHeapSpaceStatistics().map((s) => s.space_name)]);
show('locale', [Intl.DateTimeFormat().resolvedOptions(), new Date(0).toString(), (1e6).toLocaleString()]);
show('require', [Object.keys(require.cache), require.main === module, module.paths, module.id, module.filename,
  module.children.length, module.loaded, __filename, __dirname, require.resolve.paths('x')]);
show('module', [require('module').globalPaths, require('module').builtinModules.length,
  Reflect.ownKeys(require('module')).map(String)]);
show('report', (() => { const h = process.report.getReport().header;
  return [h.commandLine, h.nodejsVersion, h.cwd, h.wordSize]; })());
"""

# Each program ends within a second, and prints no times, pids or addresses.
ABOUT = {
    "timers": """
const order = []; const say = (x) => order.push(x);
setTimeout(() => say('t1'), 1).ref(); const i = setInterval(() => { say('i'); clearInterval(i); }, 5);
setTimeout(say, 30, 't30').unref; setTimeout(() => say('t60'), 60);
process.nextTick(say, 'tick'); queueMicrotask(() => say('micro')); Promise.resolve().then(() => say('then'));
const began = process.hrtime.bigint();
setTimeout(() => { say(process.hrtime.bigint() - began >= 99000000n); }, 100);
require('timers/promises').setTimeout(120, 'p').then(say);
process.on('beforeExit', () => say('before')); process.on('exit', (c) => { say(c); console.log(order.join(' ')); });
""",
    "fs": """
const fs = require('fs'), path = require('path');
fs.writeFileSync('made', 'text'); console.log(fs.readFileSync('made', 'latin1'), fs.statSync('made').mode.toString(8));
console.log(path.resolve('x') === process.cwd() + '/x');
fs.readFile('made', (e, d) => { console.log(e, d); fs.promises.readdir('.').then((l) => { console.log(l); fs.unlinkSync('made');
  fs.readFile('missing', (e) => { console.log(e);
    const s = fs.createWriteStream('made2'); s.end('data', () => { fs.createReadStream('made2').on('data', (d) =>
      console.log(String(d))).on('close', () => fs.unlinkSync('made2')); }); }); }); });
const w = fs.watch('/', () => {}); setTimeout(() => w.close(), 20);
""",
    "children": """
const c = require('child_process');
console.log(c.execSync('echo $0 $X; pwd; umask; ulimit -n; cat /proc/self/status | grep Sig[BCI]', { encoding: 'utf8' }));
console.log(c.spawnSync('sh', ['-c', 'ls -l /proc/self/fd | wc -l; env | sort; exit 3']).status);
c.exec('cat; echo err >&2; kill -9 $$', (e, o, r) => { console.log(e.code, e.signal, o, r);
  const n = c.spawn(process.execPath, ['-p', 'process.argv.length + process.execArgv.length'], { stdio: 'inherit' });
  n.on('exit', (...a) => console.log(a)); }).stdin.end('in');
""",
    "fork": """
if (process.argv[2] === 'child') {
  process.on('message', (m) => { process.send({ m, argv: process.argv.slice(2), ex: process.execArgv, c: process.connected });
    process.disconnect(); });
} else {
  const f = require('child_process').fork(__filename, ['child', 'x']);
  f.on('message', (m) => console.log(m)); f.send([1, { a: null }]); f.on('exit', (...a) => console.log(a));
}
""",
    "workers": """
const { Worker, isMainThread, parentPort, workerData, threadId } = require('worker_threads');
if (isMainThread) {
  const w = new Worker(__filename, { workerData: { a: 1 }, argv: ['y'] });
  w.on('message', (m) => console.log(m)); w.on('error', console.log); w.postMessage('to');
  w.on('exit', (c) => { console.log('exit', c);
    new Worker('throw new TypeError("inside")', { eval: true }).on('error', (e) => console.log('error', e.message)); });
} else {
  parentPort.once('message', (m) => parentPort.postMessage([m, workerData, process.argv, process.execArgv, threadId,
    process.env.HOME, Object.keys(require.cache).length, process.title]));
}
""",
    "net": """
const http = require('http'), net = require('net'), dns = require('dns');
const s = http.createServer((q, r) => r.end('hi ' + q.url)).listen(0, '127.0.0.1', async () => {
  const r = await fetch('http://127.0.0.1:' + s.address().port + '/u'); console.log(r.status, await r.text());
  s.close(); s.closeAllConnections();
  const u = net.createServer((c) => c.end('bye')).listen('sock', () => net.connect('sock').on('data', (d) => {
    console.log(String(d)); u.close(); dns.lookup('localhost', { family: 4 }, (e, a) => console.log(e, a)); }));
});
""",
    "other modules": """
const z = require('zlib'), c = require('crypto'), u = require('util');
console.log(z.gunzipSync(z.gzipSync('x'.repeat(1000))).length);
console.log(c.createHash('sha256').update('a').digest('hex'), c.randomBytes(4).length, crypto.randomUUID().length);
c.pbkdf2('p', 's', 1000, 16, 'sha512', (e, k) => { console.log(e, k.toString('hex'));
  c.generateKeyPair('ed25519', (e, p) => { console.log(e, p.asymmetricKeyType);
    z.deflate('y', (e, b) => console.log(e, b.length)); }); });
console.log(u.inspect(new Map([[1, { a: [1, 2] }]]), { colors: true }), structuredClone({ a: new Date(0) }));
console.log(new Intl.NumberFormat('de').format(1234.5), 'ä'.localeCompare('z', 'sv'), typeof WebAssembly, 0.1 + 0.2);
const { AsyncLocalStorage, executionAsyncId } = require('async_hooks');
new AsyncLocalStorage().run(1, () => setImmediate(() => console.log(executionAsyncId() > 1)));
""",
    "stdin as stream": """
let n = 0; process.stdin.on('data', (d) => { n += d.length; }).on('end', () => console.log('end', n));
console.log(process.stdin.constructor.name, process.stdout.constructor.name, process.stdin.fd, process.stdout.isTTY,
  process.stdout._type, process.stderr.writable, process.stdout.columns);
""",
    "stdin at once": "console.log(require('fs').readFileSync(0, 'utf8').length, process.stdin.isTTY);",
    "stdin as lines": """
(async () => { for await (const l of require('readline').createInterface({ input: process.stdin }))
  console.log('[' + l + ']'); })();
""",
    "much output": "process.stdout.write('x'.repeat(1 << 20)); process.stderr.write('y'.repeat(300000)); console.log('end');",
    "signals": """
process.on('SIGUSR2', (s, n) => { console.log(s, n); process.kill(process.pid, 'SIGTERM'); });
process.once('SIGTERM', (s) => { console.log(s); process.kill(process.pid, 'SIGINT'); });
process.on('SIGHUP', () => {}); setTimeout(() => {}, 10000); process.kill(process.pid, 'SIGUSR2');
""",
    "sigterm": "process.kill(process.pid, 'SIGTERM'); setTimeout(() => {}, 10000);",
    "sigkill": "process.kill(process.pid, 'SIGKILL'); setTimeout(() => {}, 10000);",
    "abort": "console.log(1); process.kill(process.pid, 'SIGABRT'); setTimeout(() => {}, 10000);",
    "exit code": "process.exitCode = 7; process.on('exit', (c) => console.log('exit', c, process.exitCode));",
    "exit": "process.on('exit', (c) => console.log(c)); process.exit(9);",
    "exit late": "setTimeout(() => process.exit(5), 5); setInterval(() => {}, 1000);",
    "reallyExit": "process.reallyExit(4);",
    "throw": "function f(x) { null.y; }\n[1].map(f);",
    "throw thing": "throw { a: 1 };",
    "throw cause": "throw new Error('a', { cause: new TypeError('b') });",
    "throw deep": "function f(n) { if (!n) throw new RangeError('deep'); f(n - 1); }\nf(20);",
    "throw unlimited": "Error.stackTraceLimit = Infinity; setTimeout(function g() { throw new Error('later'); }, 1);",
    "throw now unlimited": "Error.stackTraceLimit = Infinity; console.log(new Error('all').stack); throw new Error('all');",
    "reject": "Promise.reject(new Error('no'));",
    "reject thing": "Promise.reject(42);",
    "reject handled": "process.on('unhandledRejection', (e, p) => console.log('got', e, p)); Promise.reject(1);",
    "catch": "process.on('uncaughtException', (e, o) => console.log(e.message, o)); setTimeout(() => console.log(2), 5); throw Error('x');",
    "syntax": "let a = ;",
    "syntax end": "if (1) {",
    "require missing": "require('./nothing-there');",
    "assert": "require('assert').strictEqual(1, 2);",
    "warning": "new Buffer(1); process.emitWarning('care'); require('punycode');",
    "trace": "console.trace('here');",
    "callsites": """
Error.prepareStackTrace = (e, s) => s.map((c) => [c.getFileName(), c.getLineNumber(), c.getFunctionName(),
  c.getTypeName(), c.getMethodName(), c.isEval(), c.isNative(), c.isToplevel()].join());
Error.stackTraceLimit = 100; console.log(new Error().stack);
""",
    "stack overflow": "let n = 0; function f() { n++; f(); } try { f(); } catch (e) { console.log(e.message, n > 5000); }",
    "title": """
process.title = 'short'; console.log(process.title, require('fs').readFileSync('/proc/self/comm', 'utf8'),
  JSON.stringify(require('fs').readFileSync('/proc/self/cmdline', 'utf8')));
process.title = 'a title that is much longer than what there was before, by far'; console.log(process.title.length);
""",
    "dynamic import": "import('fs').then((m) => console.log(typeof m.readFileSync)); import('./no.mjs').catch((e) => console.log(e.code));",
    "vm": "console.log(require('vm').runInNewContext('a + 1', { a: 1 }), eval('1 + 1'), new Function('return this')() === globalThis);",
    "environment": "process.env.NEW = '1'; delete process.env.HOME; console.log(require('child_process').execSync('env | sort') + '');",
    "chdir": "process.chdir('/'); console.log(process.cwd(), require('path').resolve('a')); process.umask(0o77); console.log(process.umask());",
    "gone directory": "const fs = require('fs'); fs.mkdirSync('d'); process.chdir('d'); fs.rmdirSync('../d'); try { process.cwd(); } catch (e) { console.log(e.code); }",
    "top level await": "console.log(await Promise.resolve(3));",
    "time zone": "console.log(new Date(0).toString(), Intl.DateTimeFormat().resolvedOptions().timeZone);",
    "sourceless": "",
}


@dataclass
class Case:
    name: str
    argv: Sequence[str]
    files: Mapping[str, str] = field(default_factory=dict)
    data: bytes = b""
    # These variables are added to the environment that all cases have.
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def flags(self) -> list[str]:
        """The flags that a process must be parked with for this case."""
        flags: list[str] = []
        for word in self.argv[1:]:
            if not word.startswith("-") or word == "-":
                break
            flags.append(word)
        return flags


MODULE = """
import fs, { readFileSync } from 'node:fs'; import { createRequire } from 'node:module';
console.log(import.meta.url, import.meta.filename, import.meta.dirname, process.argv, typeof require, typeof module);
console.log(import.meta.resolve?.('./x.mjs'), await Promise.resolve(readFileSync === fs.readFileSync), this);
const { default: d, named } = await import('./other.cjs'); console.log(d, named);
console.log(createRequire(import.meta.url)('./other.cjs'));
"""
OTHER = "exports.named = 1; module.exports.loaded = module.parent && module.parent.id;"
TYPES = (
    "interface A { a: number }\nconst x: A = { a: 1 }; console.log(x as A, process.argv.length);"
)
UNFINISHED = "console.log(1); await new Promise(() => {});"

CASES = [
    *(
        Case(f"-e {name}", ["node", "-e", code], data=b"a\nb\nc")
        for name, code in ABOUT.items()
        if name != "fork" and name != "workers"
    ),
    *(
        Case(f"script {name}", ["node", "s.js", "x"], {"s.js": code}, data=b"a\nb\nc" * 50000)
        for name, code in ABOUT.items()
        if name != "fork"
    ),
    Case("script fork", ["node", "s.js"], {"s.js": ABOUT["fork"]}),
    Case("state of -e", ["node", "-e", STATE, "a", "--b"]),
    Case("state of -p", ["node", "-p", STATE]),
    Case("state of script", ["node", "s.js", "--flag", "-", "--", "ü"], {"s.js": STATE}),
    Case("state, long argument", ["node", "s.js", "y" * 5000], {"s.js": STATE}),
    Case(
        "state, with flags",
        [
            "node",
            "--no-warnings",
            "--stack-trace-limit=50",
            "--max-old-space-size=300",
            "s.js",
            "a",
        ],
        {"s.js": STATE},
    ),
    Case("state, flags and code", ["node", "--no-warnings", "-p", STATE, "b"]),
    # Debian's builds of Node.js have no snapshot.
    Case("state of -e, without a snapshot", ["node", "--no-node-snapshot", "-e", STATE]),
    Case("state of script, without a snapshot", ["node", "--no-node-snapshot", "s.js"], {"s.js": STATE}),
    Case("-p value", ["node", "-p", "({ a: [1, process.argv] })", "q", "r"]),
    Case("-p undefined", ["node", "-p", "setTimeout(() => console.log('late'), 1); undefined"]),
    Case("-p text", ["node", "-p", "'ü\\u{1F600}' + require('os').EOL"]),
    Case("-p throws", ["node", "-p", "[1].map((x) => x.y.z)"]),
    Case("-p promise", ["node", "-p", "Promise.resolve(1)"]),
    Case("-pe", ["node", "-pe", "process.execArgv"]),
    Case("--eval", ["node", "--eval", "console.log(process.execArgv, process._eval)"]),
    Case("-e nothing", ["node", "-e", ""]),
    Case(
        "-e crypto",
        ["node", "-e", "console.log(crypto.createHash('md5').update('').digest('hex'))"],
    ),
    Case("-p crypto", ["node", "-p", "crypto.createHash('md5').update('').digest('hex')"]),
    Case("-e lines", ["node", "-e", "\n\n  throw new Error('line 3')\n"]),
    Case(
        "-e long", ["node", "-e", "const a = 1;\n" * 5000 + "console.log(a)".replace("const", "")]
    ),
    Case(
        "-e module",
        ["node", "-e", "import fs from 'fs'; console.log(typeof fs.readFileSync, import.meta.url)"],
    ),
    Case("-e types", ["node", "-e", TYPES]),
    Case("-e bad types", ["node", "-e", "enum A { x = = 1 }"]),
    Case(
        "-e builtins",
        [
            "node",
            "-e",
            "console.log(typeof fs, typeof os.cpus, typeof test, __filename, require.main, module.id)",
        ],
    ),
    Case(
        "--input-type",
        [
            "node",
            "--input-type=module",
            "-e",
            "import fs from 'fs'; console.log(typeof fs, import.meta.url, await 1)",
        ],
    ),
    Case(
        "worker of -e",
        [
            "node",
            "-e",
            "const { Worker } = require('worker_threads'); new Worker('require(\"worker_threads\").parentPort.postMessage([process.argv, process.execArgv, process._eval, process.env.HOME, process._preload_modules])', { eval: true, argv: [1] }).on('message', console.log)",
        ],
    ),
    Case(
        "fork of -e",
        ["node", "-e", "require('child_process').fork('s.js', ['a']).on('message', console.log)"],
        {"s.js": "process.send([process.argv.slice(2), process.execArgv])"},
    ),
    Case(
        "cluster",
        ["node", "s.js"],
        {
            "s.js": "const c = require('cluster'); if (c.isPrimary) { c.fork({ A: 1 }).on('exit', (...a) => console.log(a, c.isWorker)); } else { console.log(process.env.A, c.worker.id, process.env.NODE_UNIQUE_ID); process.exit(2); }"
        },
    ),
    Case("mjs", ["node", "m.mjs", "a"], {"m.mjs": MODULE, "other.cjs": OTHER}),
    Case(
        "module package",
        ["node", "sub/m.js"],
        {"sub/m.js": MODULE, "sub/other.cjs": OTHER, "sub/package.json": '{"type":"module"}'},
    ),
    Case(
        "commonjs package",
        ["node", "sub/s.js"],
        {"sub/s.js": "import fs from 'fs';", "sub/package.json": '{"type":"commonjs"}'},
    ),
    Case(
        "syntax tells module",
        ["node", "s.js"],
        {"s.js": "import fs from 'fs'; console.log(typeof fs, import.meta.url)"},
    ),
    Case(
        "no extension",
        ["node", "tool", "x"],
        {
            "tool": "#!/usr/bin/env node\nconsole.log(__filename, require.main === module, process.argv)"
        },
    ),
    Case("extension left out", ["node", "s"], {"s.js": "console.log(__filename, process.argv)"}),
    Case(
        "directory",
        ["node", "d"],
        {"d/index.js": "console.log(__filename, module.paths, process.argv)"},
    ),
    Case(
        "directory with main",
        ["node", "./d/"],
        {
            "d/package.json": '{"main":"lib/x"}',
            "d/lib/x.js": "console.log(__filename, module.parent)",
        },
    ),
    Case("here", ["node", "."], {"index.js": "console.log(__filename)"}),
    Case(
        "packages",
        ["node", "s.js"],
        {
            "s.js": "console.log(require('p'), require('p/package.json'), Object.keys(require.cache), module.children.length)",
            "node_modules/p/index.js": "module.exports = [__filename, module.parent.filename]",
            "node_modules/p/package.json": "{}",
        },
    ),
    Case("missing", ["node", "nothing.js"]),
    Case("missing module", ["node", "nothing.mjs"]),
    Case("json", ["node", "s.json"], {"s.json": '{"a":1}'}),
    Case("bad json", ["node", "s.json"], {"s.json": "{"}),
    Case("types", ["node", "s.ts"], {"s.ts": TYPES}),
    Case("bad extension", ["node", "s.xyz"], {"s.xyz": "console.log(__filename)"}),
    Case(
        "module throws",
        ["node", "m.mjs"],
        {"m.mjs": "export default 1;\nfunction f() { throw new Error('in module'); }\nf();"},
    ),
    Case("module of nothing", ["node", "m.mjs"], {"m.mjs": "import './missing.mjs';"}),
    Case("module of no export", ["node", "m.mjs"], {"m.mjs": "import { nope } from 'fs';"}),
    Case("module syntax", ["node", "m.mjs"], {"m.mjs": "let = 1;"}),
    Case("module never done", ["node", "m.mjs"], {"m.mjs": UNFINISHED}),
    Case(
        "module rejects", ["node", "m.mjs"], {"m.mjs": "await Promise.reject(new TypeError('r'))"}
    ),
    Case(
        "module limits",
        ["node", "m.mjs"],
        {
            "m.mjs": "Error.stackTraceLimit = Infinity; console.log(new Error('x').stack); throw new Error('y')"
        },
    ),
    Case(
        "source map",
        ["node", "--enable-source-maps", "s.js"],
        {
            "s.js": "throw new Error('m')\n//# sourceMappingURL=s.map",
            "s.map": '{"version":3,"sources":["o.ts"],"names":[],"mappings":"AAAA","sourcesContent":["throw 1"]}',
        },
    ),
    Case(
        "-r",
        ["node", "--require=./pre.js", "s.js"],
        {
            "pre.js": "console.log('pre', process.argv, module.parent && module.parent.id); globalThis.P = 1",
            "s.js": "console.log(P, Object.keys(require.cache).length, process._preload_modules, process.execArgv)",
        },
    ),
    Case(
        "--import",
        ["node", "--import=./pre.mjs", "s.js"],
        {
            "pre.mjs": "console.log('pre'); globalThis.P = 2",
            "s.js": "console.log(P); throw new Error('after import')",
        },
    ),
    Case(
        "-r and a worker",
        ["node", "--require=./pre.js", "s.js"],
        {
            "pre.js": "console.log('pre', require('worker_threads').isMainThread)",
            "s.js": ABOUT["workers"],
        },
    ),
    Case(
        "monkey",
        ["node", "--require=./pre.js", "s.js", "z"],
        {
            "pre.js": "const M = require('module'), r = M.runMain; M.runMain = function (...a) { console.log('main', a.length, process.argv); return r.apply(this, a); }",
            "s.js": "throw new Error('patched')",
        },
    ),
    Case(
        "stdin with code on it",
        ["node", "-e", "process.stdin.pipe(process.stdout)"],
        data=b"piped\n" * 20000,
    ),
    Case("inspect word", ["node", "inspector", "a"], {"inspector.js": "console.log(process.argv)"}),
    Case(
        "NODE_PATH",
        ["node", "-p", "require('q')"],
        {"lib/q.js": "module.exports = __filename"},
        env={"NODE_PATH": "lib"},
    ),
    Case("NODE_NO_WARNINGS", ["node", "-e", "new Buffer(1)"], env={"NODE_NO_WARNINGS": "1"}),
    Case(
        "NODE_DEBUG",
        [
            "node",
            "-e",
            "require('timers').setTimeout(() => {}, 1); console.log(require('util').debuglog('x').enabled)",
        ],
        env={"NODE_DEBUG": "x"},
    ),
    Case(
        "NODE_TEST_CONTEXT",
        ["node", "-e", "require('node:test')('t', () => {})"],
        env={"NODE_TEST_CONTEXT": "child"},
    ),
    Case("TZ", ["node", "-e", ABOUT["time zone"]], env={"TZ": "Asia/Tokyo"}),
    Case(
        "TZ in state",
        ["node", "s.js"],
        {"s.js": STATE},
        env={"TZ": "America/New_York", "MANY": "x" * 20000},
    ),
    Case(
        "FORCE_COLOR",
        ["node", "-p", "[1, 'a', null, process.stdout.hasColors && 1]"],
        env={"FORCE_COLOR": "1"},
    ),
    Case("no PATH", ["node", "-p", "Object.keys(process.env)"], env={"EMPTY": ""}),
    Case(
        "http proxies",
        ["node", "-p", "process.env.http_proxy"],
        env={"http_proxy": "http://127.0.0.1:1"},
    ),
]
