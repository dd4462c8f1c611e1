# SPDX-License-Identifier: MIT OR Apache-2.0
"""A harness of AutoGen Core as in the RFC: RoutedAgents, SingleThreadedAgentRuntime, RPC."""

from dataclasses import dataclass
from functools import partial

from autogen_core import (
    AgentId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    message_handler,
)

from common.definitions import Terms
from common.methods import Answer, AsyncCall, Awaited

AGENT_TYPE = "tool_worker"


@dataclass
class ToolCall:
    """A request to run a program. AutoGen logs every message as JSON, so all fields are strings."""

    argv: list[str]
    cwd: str


@dataclass
class ToolReply:
    """The program's answer as text, as a model gets it. Surrogates preserve invalid bytes."""

    code: int
    stdout: str
    stderr: str


class ToolWorker(RoutedAgent):
    """Runs the tool calls that it receives."""

    def __init__(self, call: AsyncCall) -> None:
        super().__init__("runs programs in the workspace")
        self._call = call

    @message_handler
    async def run_tool(self, message: ToolCall, ctx: MessageContext) -> ToolReply:
        code, stdout, stderr = await self._call(message.argv)
        return ToolReply(
            code,
            stdout.decode("utf-8", "surrogateescape"),
            stderr.decode("utf-8", "surrogateescape"),
        )


class Autogen(Awaited):
    """One agent for each call in flight. Each call is a message, and awaits the reply."""

    def __init__(self, call: AsyncCall, terms: Terms, cwd: str) -> None:
        super().__init__([], terms)
        self._runtime = SingleThreadedAgentRuntime()
        agents = [AgentId(AGENT_TYPE, str(lane)) for lane in range(terms.in_flight)]
        self._lanes = [partial(self._send, agent) for agent in agents]
        self._cwd = cwd
        self._runner.run(self._open(call))

    async def _open(self, call: AsyncCall) -> None:
        await ToolWorker.register(self._runtime, AGENT_TYPE, lambda: ToolWorker(call))
        self._runtime.start()

    async def _end(self) -> None:
        await self._runtime.stop_when_idle()
        await self._runtime.close()

    def close(self) -> None:
        """Ends the agents, and closes the loop."""
        self._runner.run(self._end())
        super().close()

    async def _send(self, agent: AgentId, argv: list[str]) -> Answer:
        message = ToolCall(argv, self._cwd)
        reply: ToolReply = await self._runtime.send_message(message, agent)
        return (
            reply.code,
            reply.stdout.encode("utf-8", "surrogateescape"),
            reply.stderr.encode("utf-8", "surrogateescape"),
        )
