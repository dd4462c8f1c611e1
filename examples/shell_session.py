# SPDX-License-Identifier: MIT OR Apache-2.0
"""Keeps one shell open for many commands, as an agent's terminal does.

    pip install spawnfd
    python shell_session.py

The directory, variables and functions stay from command to command. Each command has its own exit
code, output and timeout. A timeout ends the command, and the shell lives on.
"""

from __future__ import annotations

import asyncio
import tempfile

import spawnfd as sf


async def main() -> None:
    env = sf.Env.inherit(deny=["*_TOKEN", "*_KEY"]).noninteractive()
    with tempfile.TemporaryDirectory() as directory:
        async with sf.Session("bash", cwd=directory, env=env) as shell:
            # State stays.
            result = await shell.run("mkdir src && cd src && export GREETING=hello")
            assert result.cwd is not None
            print(result.code, result.cwd.name)
            result = await shell.run("echo $GREETING, world; false")
            print(result.code, result.text.strip())

            # A timeout ends the command only.
            result = await shell.run("echo started; sleep 600", timeout=1)
            print(result.stop, result.text.strip(), f"shell exited: {result.shell_exited}")

            # A command that still runs after a while becomes a job: read, write, wait, interrupt.
            question = "read -p 'Continue? ' answer; echo got $answer"
            job = await shell.run(question, yield_after=0.2, stdin="stream")
            if isinstance(job, sf.Job):
                await job.write("yes\n")
                print((await job.result()).text.strip())

            # Output as it arrives.
            async with shell.start("for n in 1 2 3; do echo step $n; done") as job:
                async for event in job.events(lines=True):
                    print(event.text, end="")


if __name__ == "__main__":
    asyncio.run(main())
