// SPDX-License-Identifier: MIT OR Apache-2.0
// A terminal in the browser: xterm.js shows a pseudo-terminal, over server-sent events and fetch().
//
//     node browser-terminal.ts [PROGRAM [ARGUMENT...]]     prints an address for the browser
//
// Each page has a program of its own, by default the user's shell. The program ends with its process tree when the page is
// closed, and when this server ends. A page that reads slowly slows its program down. The server listens on the loopback
// interface, and answers only requests with the secret of the address.

import { randomBytes, timingSafeEqual } from 'node:crypto';
import { once } from 'node:events';
import { createReadStream } from 'node:fs';
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http';
import { createRequire } from 'node:module';
import type { AddressInfo } from 'node:net';
import { text } from 'node:stream/consumers';
import { start, type Job } from 'spawnfd';

const PROGRAM = process.argv.length > 2 ? process.argv.slice(2) : [process.env.SHELL ?? '/bin/sh'];
const SECRET = randomBytes(16).toString('hex');
const resolve = createRequire(import.meta.url).resolve;
const FILES: Record<string, [type: string, path: string]> = {
  '/xterm.js': ['text/javascript', resolve('@xterm/xterm')],
  '/xterm.css': ['text/css', resolve('@xterm/xterm/css/xterm.css')],
};

const PAGE = `<!doctype html>
<meta charset="utf-8">
<title>Terminal</title>
<link rel="stylesheet" href="xterm.css?secret=${SECRET}">
<style>html, body, #terminal { height: 100%; margin: 0; background: black; overflow: hidden }</style>
<div id="terminal"></div>
<script src="xterm.js?secret=${SECRET}"></script>
<script>
  const terminal = new Terminal();
  const id = crypto.randomUUID();
  const address = (path, values) => path + '?' + new URLSearchParams({ secret: '${SECRET}', id, ...values });
  const size = () => ({ rows: terminal.rows, columns: terminal.cols });

  function fit() {
    const { clientWidth, clientHeight } = document.querySelector('.xterm-screen');
    const columns = Math.floor(innerWidth / (clientWidth / terminal.cols));
    const rows = Math.floor(innerHeight / (clientHeight / terminal.rows));
    terminal.resize(Math.max(columns, 2), Math.max(rows, 1));
  }

  // One request at a time keeps the order of the input.
  let sent = Promise.resolve();
  function send(path, values, body) {
    sent = sent.then(() => fetch(address(path, values), { method: 'POST', body })).catch(() => {});
  }

  terminal.open(document.getElementById('terminal'));
  fit();
  const output = new EventSource(address('output', size()));
  output.onmessage = ({ data }) => terminal.write(Uint8Array.from(atob(data), (byte) => byte.charCodeAt(0)));
  output.addEventListener('end', ({ data }) => {
    output.close();
    terminal.write('\\r\\n[' + data + ']');
  });
  output.onopen = () => {
    terminal.onData((data) => send('input', {}, data));
    terminal.onResize(() => send('resize', size()));
    fit();
    addEventListener('resize', fit);
    terminal.focus();
  };
</script>
`;

/** The programs of the open pages, by the id that the page has made. */
const jobs = new Map<string, Job>();

/** Streams the output of a new program to a page. The end of either ends the other. */
async function output(id: string, rows: number, columns: number, response: ServerResponse): Promise<void> {
  await using job = start(PROGRAM, {
    terminal: { rows, columns },
    stdin: 'stream',
    env: { ...process.env, TERM: 'xterm-256color' },
  });
  response.on('close', () => void job.stop().catch(() => {}));
  response.writeHead(200, { 'content-type': 'text/event-stream', 'cache-control': 'no-store' }).flushHeaders();
  jobs.set(id, job);
  let end: string;
  try {
    for await (const { data } of job.events()) {
      if (data && !response.write(`data: ${data.toString('base64')}\n\n`)) {
        // A closed page drains no more.
        await Promise.race([once(response, 'drain'), once(response, 'close')]);
      }
    }
    const { code, signal } = await job.wait();
    end = signal === null ? `exit code ${code}` : `signal ${signal}`;
  } catch (error) {
    end = error instanceof Error ? error.message : String(error);
  } finally {
    jobs.delete(id);
  }
  response.end(`event: end\ndata: ${end.replaceAll('\n', ' ')}\n\n`);
}

async function answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
  const { pathname, searchParams } = new URL(request.url ?? '/', 'http://localhost');
  const secret = Buffer.from(searchParams.get('secret') ?? '');
  if (secret.length !== SECRET.length || !timingSafeEqual(secret, Buffer.from(SECRET))) {
    response.writeHead(403).end();
    return;
  }
  const id = searchParams.get('id') ?? '';
  const size = { rows: Number(searchParams.get('rows')), columns: Number(searchParams.get('columns')) };
  const job = jobs.get(id);
  const file = FILES[pathname];
  if (pathname === '/') {
    response.writeHead(200, { 'content-type': 'text/html', 'referrer-policy': 'no-referrer' }).end(PAGE);
  } else if (file) {
    createReadStream(file[1]).pipe(response.writeHead(200, { 'content-type': file[0] }));
  } else if (pathname === '/output' && !job) {
    await output(id, size.rows, size.columns, response);
  } else if (pathname === '/input' && request.method === 'POST' && job) {
    await job.write(await text(request));
    response.writeHead(204).end();
  } else if (pathname === '/resize' && request.method === 'POST' && job) {
    await job.resize(size);
    response.writeHead(204).end();
  } else {
    response.writeHead(404).end();
  }
}

const server = createServer((request, response) => {
  answer(request, response).catch((error: unknown) => {
    console.error(error);
    response.destroy();
  });
});
server.listen(0, '127.0.0.1', () => {
  console.log(`http://127.0.0.1:${(server.address() as AddressInfo).port}/?secret=${SECRET}`);
});
