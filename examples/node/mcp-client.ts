// SPDX-License-Identifier: MIT OR Apache-2.0
// An MCP client for the terminal: starts a server, prints its tools, and calls those that its standard input names.
//
//     echo 'exec {"argv": ["date"]}' | node mcp-client.ts python3 ../mcp_server.py
//
// Each line of the input is the name of a tool and its arguments in JSON. At the end of the input the client closes the
// server. The server's process tree ends with the client, also if the client is killed.

import { createInterface } from 'node:readline';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StdioClientTransport } from 'spawnfd/mcp';

const [command, ...args] = process.argv.slice(2);
if (command === undefined) {
  console.error('usage: mcp-client.ts SERVER [ARGUMENT...]');
  process.exit(2);
}
const transport = new StdioClientTransport({ command, args, stderr: 'pipe', grace: 10_000 });
// The server may write to its standard error at any time, and does not block if nobody reads it. The end is for a failure.
let complaints = '';
transport.stderr?.setEncoding('utf8').on('data', (text: string) => (complaints = (complaints + text).slice(-1000)));

const client = new Client({ name: 'mcp-client', version: '1.0.0' });
try {
  await client.connect(transport, { timeout: 30_000 });
  const { tools } = await client.listTools();
  console.log('tools:', tools.map(({ name }) => name).sort().join(', '));
  for await (const line of createInterface({ input: process.stdin })) {
    const [, name = '', values] = /^(\S+)\s*(.*)$/.exec(line) ?? [];
    const result = await client.callTool({ name, arguments: JSON.parse(values || '{}') });
    console.log(`${name}:`, JSON.stringify(result.structuredContent ?? result.content));
  }
} catch (error) {
  console.error(error instanceof Error ? error.message : error);
  process.exitCode = 1;
} finally {
  await client.close();
}
// Without a result, the server could not be started.
const { stop, code, signal } = transport.result ?? {};
console.log(`server: ${stop ?? 'not started'}, ${signal == null ? `code ${code}` : `signal ${signal}`}`);
if (process.exitCode === 1 && complaints) {
  console.error(complaints);
}
