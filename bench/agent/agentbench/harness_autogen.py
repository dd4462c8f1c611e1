# SPDX-License-Identifier: MIT OR Apache-2.0
"""A harness of AutoGen Core as in the RFC: RoutedAgents, SingleThreadedAgentRuntime, RPC."""

from dataclasses import dataclass

from autogen_core import (
    AgentId,
    MessageContext,
    RoutedAgent,
    SingleThreadedAgentRuntime,
    message_handler,
)

from common.asyncio_calls import Answer

from .backends import Backend
from .harness import Harness

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

    def __init__(self, backend: Backend) -> None:
        super().__init__("runs programs in the workspace")
        self._backend = backend

    @message_handler
    async def run_tool(self, message: ToolCall, ctx: MessageContext) -> ToolReply:
        code, stdout, stderr = await self._backend.call(message.argv, message.cwd)
        return ToolReply(
            code,
            stdout.decode("utf-8", "surrogateescape"),
            stderr.decode("utf-8", "surrogateescape"),
        )


class AutogenHarness(Harness):
    """One agent for each call in flight. Each call is a message, and awaits the reply."""

    name = "autogen"

    async def open(self) -> None:
        self._runtime = SingleThreadedAgentRuntime()
        await ToolWorker.register(self._runtime, AGENT_TYPE, lambda: ToolWorker(self.backend))
        self._agents = [AgentId(AGENT_TYPE, str(lane)) for lane in range(self.in_flight)]
        self._runtime.start()

    async def close(self) -> None:
        await self._runtime.stop_when_idle()
        await self._runtime.close()

    async def dispatch(self, lane: int, argv: list[str]) -> Answer:
        reply: ToolReply = await self._runtime.send_message(
            ToolCall(argv, self.cwd), self._agents[lane]
        )
        return (
            reply.code,
            reply.stdout.encode("utf-8", "surrogateescape"),
            reply.stderr.encode("utf-8", "surrogateescape"),
        )
