// SPDX-License-Identifier: MIT OR Apache-2.0
// The stdio transport, with the client and the server of the MCP SDK, and with servers that misbehave.

import assert from 'node:assert/strict';
import { createWriteStream, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { PassThrough } from 'node:stream';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from 'spawnfd/mcp';
import { isRunning, pidIn, scratch, until } from './support.mjs';

const CWD = fileURLToPath(new URL('..', import.meta.url));
const SERVER = `
  import { McpServer } from '@modelcontextprotocol/sdk/server/mcp.js';
  import { StdioServerTransport } from '@modelcontextprotocol/sdk/server/stdio.js';
  import { z } from 'zod';
  const server = new McpServer({ name: 'test', version: '1' });
  server.registerTool('repeat', { inputSchema: { text: z.string(), times: z.number() } }, ({ text, times }) => {
    console.error('repeating');
    return { content: [{ type: 'text', text: text.repeat(times) }] };
  });
  server.registerTool('exit', {}, () => process.exit(3));
  await server.connect(new StdioServerTransport());
`;

/** A transport of a server in sh, with what its callbacks got. */
function shell(script, options = {}) {
  const { args = [], ...others } = options;
  const transport = new StdioClientTransport({ command: 'sh', args: ['-c', script, ...args], ...others });
  const seen = { messages: [], errors: [], closes: 0 };
  transport.onmessage = (message) => seen.messages.push(message);
  transport.onerror = (error) => seen.errors.push(error);
  transport.onclose = () => (seen.closes += 1);
  return { transport, seen };
}

function note(method) {
  return { jsonrpc: '2.0', method };
}

async function connected(t) {
  const transport = new StdioClientTransport({
    command: process.execPath,
    args: ['--input-type=module', '-e', SERVER],
    cwd: CWD,
    stderr: 'pipe',
  });
  const client = new Client({ name: 'test', version: '1' });
  t.after(() => client.close());
  await client.connect(transport);
  return { client, transport };
}

test("the SDK's client and server exchange messages", async (t) => {
  const { client, transport } = await connected(t);
  assert.ok(isRunning(transport.pid));
  assert.deepEqual((await client.listTools()).tools.map(({ name }) => name), ['repeat', 'exit']);
  const calls = Array.from({ length: 50 }, (_, index) =>
    client.callTool({ name: 'repeat', arguments: { text: `é${index}`, times: 2 } }),
  );
  const texts = (await Promise.all(calls)).map(({ content }) => content[0].text);
  assert.deepEqual(texts, calls.map((_, index) => `é${index}é${index}`));
  const large = await client.callTool({ name: 'repeat', arguments: { text: 'x'.repeat(1_000_000), times: 3 } });
  assert.equal(large.content[0].text.length, 3_000_000);
  await client.close();
  assert.deepEqual([transport.result.code, transport.pid], [0, null]);
  assert.match((await transport.stderr.setEncoding('utf8').toArray()).join(''), /^(repeating\n){51}$/);
});

test('the exit of the server fails pending requests', async (t) => {
  const { client, transport } = await connected(t);
  await assert.rejects(client.callTool({ name: 'exit' }), /closed/);
  assert.equal(transport.result.code, 3);
});

test('close() ends the tree of a server that ignores the end of its input and SIGTERM', async (t) => {
  const file = join(scratch(t), 'pid');
  const script = "trap '' TERM; sleep 1000 & echo $! >\"$0\"; while :; do sleep 1000; done";
  const { transport, seen } = shell(script, { args: [file], grace: 100 });
  await transport.start();
  const [server, grandchild] = [transport.pid, await pidIn(file)];
  const first = transport.close();
  assert.equal(transport.close(), first);
  await first;
  assert.deepEqual([isRunning(server), seen.closes], [false, 1]);
  await until(() => !isRunning(grandchild), 'the end of the tree');
  await transport.close();
  assert.deepEqual([seen.closes, seen.errors, transport.result.signal], [1, [], 9]);
});

test('close() gives a server time to end by itself', async () => {
  const { transport } = shell('cat >/dev/null; exit 7');
  await transport.start();
  await transport.close();
  assert.deepEqual([transport.result.stop, transport.result.code], ['exited', 7]);
});

test('a background process that holds the pipes does not keep the transport open', async (t) => {
  const file = join(scratch(t), 'pid');
  const { transport, seen } = shell('sleep 1000 & echo $! >"$0"', { args: [file] });
  await transport.start();
  await until(() => seen.closes === 1, 'onclose');
  const pid = await pidIn(file);
  await until(() => !isRunning(pid), 'the end of the tree');
  await assert.rejects(transport.send(note('late')));
});

test('a message may arrive in parts, and several at once', async () => {
  const script = String.raw`
    printf '{"jsonrpc":"2.0","method":"\303'; read line
    printf '\251"}\r\n{"jsonrpc":"2.0","method":"b"}\nno json\n[1]\n{"jsonrpc":"2.0",'; read line
    printf '"method":"c"}\n'; read line`;
  const { transport, seen } = shell(script);
  await transport.start();
  await transport.send(note('go on'));
  await until(() => seen.errors.length === 2, 'two errors');
  assert.deepEqual(seen.messages.map(({ method }) => method), ['é', 'b']);
  await transport.send(note('go on'));
  await until(() => seen.messages.length === 3, 'the last message');
  await transport.close();
  assert.deepEqual([seen.messages[2].method, seen.errors.length], ['c', 2]);
});

test('an error of a handler is reported, and the next message arrives', async () => {
  const { transport, seen } = shell(String.raw`printf '{"jsonrpc":"2.0","method":"a"}\n%.0s' 1 2; read line`);
  transport.onmessage = () => {
    throw new Error('of a handler');
  };
  await transport.start();
  await until(() => seen.errors.length === 2, 'two errors');
  await transport.close();
  assert.equal(seen.errors[0].message, 'of a handler');
});

test('a message that is too large closes the transport', async () => {
  const { transport, seen } = shell('head -c 100000 /dev/zero; exec sleep 1000', { maxBufferSize: 1000, grace: 100 });
  await transport.start();
  await until(() => seen.closes === 1, 'onclose');
  assert.match(seen.errors[0].message, /maxBufferSize \(1000\)/);
});

test('data after the transport is closed is ignored', async () => {
  const { transport, seen } = shell(String.raw`yes '{"jsonrpc":"2.0","method":"m"}'`, { grace: 100 });
  transport.onmessage = (message) => {
    seen.messages.push(message);
    void transport.close();
  };
  await transport.start();
  await until(() => seen.closes === 1, 'onclose');
  assert.deepEqual([seen.messages.length, seen.errors], [1, []]);
  const large = shell('yes | tr -d "\\n"', { maxBufferSize: 1000, grace: 100 });
  await large.transport.start();
  await until(() => large.seen.closes === 1, 'onclose');
  assert.equal(large.seen.errors.length, 1);
});

test('standard error may go to a stream, with and without a descriptor', async (t) => {
  const path = join(scratch(t), 'log');
  const file = createWriteStream(path);
  await new Promise((resolve) => file.once('open', resolve));
  t.after(() => file.destroy());
  const memory = new PassThrough();
  for (const stderr of [file, memory]) {
    const { transport } = shell('echo begun >&2; read line', { stderr });
    await transport.start();
    await transport.close();
    assert.equal(transport.stderr, null);
  }
  assert.deepEqual([readFileSync(path, 'utf8'), memory.read().toString()], ['begun\n', 'begun\n']);
  const flood = shell('head -c 8000000 /dev/zero >&2', { stderr: new PassThrough() });
  await flood.transport.start();
  await until(() => flood.seen.closes === 1, 'the end of the server');
  assert.equal(flood.transport.result.code, 0);
});

test('a server that floods its standard error does not block', async () => {
  const script = String.raw`head -c 8000000 /dev/zero >&2; printf '{"jsonrpc":"2.0","method":"done"}\n'; read line`;
  const { transport, seen } = shell(script, { stderr: 'pipe' });
  await transport.start();
  await until(() => seen.messages.length === 1, 'the message after the flood');
  await transport.close();
  const bytes = Buffer.concat(await transport.stderr.toArray()).length;
  assert.ok(bytes >= 1 << 20 && bytes < 2 << 20, `${bytes} bytes`);
});

test('a server gets the safe variables, and those of the parameters', async (t) => {
  process.env.SPAWNFD_TEST_SECRET = 'secret';
  t.after(() => delete process.env.SPAWNFD_TEST_SECRET);
  const script = String.raw`printf '{"jsonrpc":"2.0","method":"%s"}\n' "$SPAWNFD_TEST_SECRET,$GIVEN,$PATH"; read line`;
  const { transport, seen } = shell(script, { env: { GIVEN: 'given' } });
  await transport.start();
  await until(() => seen.messages.length === 1, 'the message');
  await transport.close();
  assert.equal(seen.messages[0].method, `,given,${process.env.PATH}`);
});

test('send() waits while the server does not read, and close() ends that wait', async () => {
  const { transport } = shell('read line; exec sleep 1000', { grace: 100 });
  await transport.start();
  const rejected = assert.rejects(transport.send(note('x'.repeat(20_000_000))), { code: 'EPIPE' });
  await transport.close();
  await rejected;
});

test('a start that fails is an error, and a transport starts once', async () => {
  const missing = new StdioClientTransport({ command: 'no-such-server-here' });
  const errors = [];
  missing.onerror = (error) => errors.push(error);
  await assert.rejects(missing.send(note('early')), /Not connected/);
  await assert.rejects(missing.start(), { name: 'SpawnError', code: 'ENOENT' });
  assert.equal(errors.length, 1);
  await missing.close();
  // The child finds the directory missing after the start.
  const nowhere = new Client({ name: 'test', version: '1' });
  nowhere.onerror = (error) => errors.push(error);
  await assert.rejects(nowhere.connect(new StdioClientTransport({ command: 'cat', cwd: '/no/such' })));
  assert.match(errors.at(-1).message, /no such working directory: \/no\/such/);
  const { transport } = shell('cat');
  await transport.start();
  await assert.rejects(transport.start(), /already started/);
  await transport.close();
});
