# SPDX-License-Identifier: MIT OR Apache-2.0
"""Installs the packages in a root directory of Debian, uses them, and removes them again.

    python3 check_root.py {python,command,library} CHECKOUT PACKAGES WHEELS

test.sh runs this script as root in a copy of the root, without a network. WHEELS has the wheel of
uv. The script prints what passed. Each command has a time limit. After each removal, the files of
the root are the same as before, and no process is left.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
LIMIT_S = 600
# The comparison leaves out files that are not part of the root, and files that dpkg, ldconfig and
# apt write for their own use. It includes /dev/shm, where in-root.sh mounts an empty file system.
OTHER = re.compile(r"/(proc|sys|dev/(?!shm(/|$))[^/]+|mnt|run|var/(log|cache|lib/(dpkg|apt)))(/|$)")
# The first CPython that the package supports, and the newest that warm starts support.
OLDEST, NEWEST_WARM = (3, 10), (3, 14)


def fail(message: str) -> None:
    """Ends the script, if a check has failed."""
    sys.exit(f"check_root: {message}")


def call(*argv: object, cwd: str | Path = "/", status: int = 0, **env: str) -> str:
    """The output of a command that must end with this status."""
    result = subprocess.run(
        [str(argument) for argument in argv],
        cwd=cwd,
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    if result.returncode != status:
        shown = " ".join(map(str, argv))
        fail(f"`{shown}` exited with {result.returncode}, expected {status}:\n{result.stdout}")
    return result.stdout


def check(holds: bool, message: str) -> None:
    """Ends the script unless the condition holds."""
    if not holds:
        fail(message)


def contents(path: str, status: os.stat_result) -> str:
    """The size and the hash of a regular file, or the target of a link."""
    if stat.S_ISLNK(status.st_mode):
        return os.readlink(path)
    if stat.S_ISREG(status.st_mode):
        return f"{status.st_size} {hashlib.sha256(Path(path).read_bytes()).hexdigest()}"
    return ""


def files(top: Path) -> dict[str, tuple[int, str]]:
    """The paths below a directory, with their modes and contents."""
    found: dict[str, tuple[int, str]] = {}
    for folder, directories, names in os.walk(top):
        directories[:] = [
            name for name in directories if not OTHER.match(os.path.join(folder, name))
        ]
        for name in (*directories, *names):
            path = os.path.join(folder, name)
            if not OTHER.match(path):
                status = os.lstat(path)
                found[path] = (status.st_mode, contents(path, status))
    return found


def processes() -> list[str]:
    """The command lines of all processes, except for the first one, this one and its ancestors."""
    known = {1}
    pid = os.getpid()
    while pid > 1:
        known.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if int(path.name) not in known:
                found.append(path.name + " " + (path / "stat").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            pass
    return found


@contextmanager
def nothing_left(top: Path, *besides: Path) -> Iterator[None]:
    """Fails if the body leaves a process, or creates, removes or changes a file in a directory."""
    before = files(top)
    yield
    deadline = time.monotonic() + 60
    while (left := processes()) and time.monotonic() < deadline:
        time.sleep(0.05)
    check(not left, f"processes are left: {left}")
    after = files(top)
    paths = (before.keys() | after.keys()) - {str(path) for path in besides}
    changed = [path for path in paths if before.get(path) != after.get(path)]
    check(not changed, f"files are left, missing or changed in {top}: {sorted(changed)[:20]}")


class Packages:
    """The checkout and the built packages."""

    def __init__(self, checkout: Path, packages: Path, wheels: Path) -> None:
        """Reads the version and the README of the checkout."""
        self.checkout, self.packages, self.wheels = checkout, packages, wheels
        manifest = (checkout / "Cargo.toml").read_text()
        self.version = re.findall(r'(?m)^version = "(.+)"', manifest)[0]
        self.readme = (checkout / "README.md").read_text()

    def built(self, pattern: str) -> list[Path]:
        """The packages of this pattern. There must be one or more."""
        found = sorted(self.packages.glob(pattern))
        check(bool(found), f"{self.packages} has no {pattern}")
        return found

    def examples(self, language: str, page: str) -> list[tuple[str, str]]:
        """The blocks of code of a page, each with the output that follows it.

        The language is a pattern that matches all of the word after the opening fence.
        """
        block = r"(?sm)^```([^\n]*)\n(.*?)^```\n(?:\n```text\n(.*?)^```\n)?"
        found = [
            (code, output)
            for word, code, output in re.findall(block, page)
            if re.fullmatch(language, word)
        ]
        check(bool(found), f"a page has no example in {language}")
        return found


def make_repository(folder: Path) -> None:
    """What the README's examples use: a repository of git, a Makefile, and a file with a TODO."""
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(folder)]
    (folder / "Makefile").write_text("all:\n\t@echo made; echo TODO >&2\n")
    call(*git, "init", "--quiet")
    call(*git, "add", "Makefile")
    for number in range(3):
        call(*git, "commit", "--quiet", "--allow-empty", "--message", f"Change {number}")


def use_python_package(
    python: Path, packages: Packages, repository: Path, version: tuple[int, int]
) -> None:
    """The README's lines, the smoke tests and the demo."""
    ((code, _),) = packages.examples("python", packages.readme)
    printed = call(python, "-c", code, cwd=repository)
    # Three changes, of which the first stands after the code and the reason of the end. The two
    # events may come in any order.
    commits = r"0 exited [0-9a-f]+ Change 2\n[0-9a-f]+ Change 1\n[0-9a-f]+ Change 0\n\n"
    events = r"(stdout made\nstderr TODO|stderr TODO\nstdout made)\n"
    check(
        re.fullmatch(commits + events + "reserve\n", printed) is not None,
        f"README's example printed:\n{printed}",
    )
    chosen = call(python, "-c", "import spawnfd; print(spawnfd.portable)")
    check(chosen == "False\n", "the wheel without a native part was installed")
    smoke = packages.checkout / "packaging/smoke.py"
    call(python, "-m", "spawnfd.demo", "--seconds", "1")
    call(python, smoke, SMOKE_PYTHON_IS_WARM=str(int(version <= NEWEST_WARM)))


def new_venv(interpreter: Path, scratch: Path) -> tuple[Path, list[object]]:
    """Makes a virtual environment. Returns its interpreter, and the command of its pip."""
    call(interpreter, "-m", "venv", scratch / "venv")
    python = scratch / "venv/bin/python"
    return python, [python, "-m", "pip"]


def check_pip(
    interpreter: Path, packages: Packages, scratch: Path, version: tuple[int, int]
) -> None:
    """A virtual environment of venv, with pip."""
    python, pip = new_venv(interpreter, scratch)
    with nothing_left(scratch / "venv"):
        call(
            *pip,
            "install",
            "--no-cache-dir",
            "--no-index",
            "--find-links",
            packages.packages,
            "spawnfd",
        )
        use_python_package(python, packages, scratch / "repository", version)
        call(*pip, "uninstall", "--yes", "spawnfd")


def check_portable(
    interpreter: Path, packages: Packages, scratch: Path, version: tuple[int, int]
) -> None:
    """The wheel without a native part, which pip and uv choose only where no other wheel fits."""
    python, pip = new_venv(interpreter, scratch)
    (wheel,) = packages.built("spawnfd-*-py3-none-any.whl")
    tests = ["Package", "Portable", "Run.test_result_has_status_and_streams"]
    tests += ["Run.test_missing_program_is_an_error_with_errno", "Run.test_sixteen_runs_at_once"]
    with nothing_left(scratch / "venv"):
        call(*pip, "install", "--no-cache-dir", "--no-index", wheel)
        said = call(python, packages.checkout / "packaging/smoke.py", *tests)
        check("PortableWarning" in said, f"the portable package did not warn:\n{said}")
        call(*pip, "uninstall", "--yes", "spawnfd")


def check_uv(
    interpreter: Path, packages: Packages, scratch: Path, version: tuple[int, int]
) -> None:
    """A virtual environment of uv."""
    call(interpreter, "-m", "venv", scratch / "tools")
    pip = [scratch / "tools/bin/python", "-m", "pip"]
    call(*pip, "install", "--no-cache-dir", "--no-index", "--find-links", packages.wheels, "uv")
    environment, uv = scratch / "environment", [scratch / "tools/bin/uv", "--offline", "--no-cache"]
    call(*uv, "venv", "--quiet", "--python", interpreter, environment)
    python = environment / "bin/python"
    # uv creates the file .lock.
    with nothing_left(environment, environment / ".lock"):
        call(
            *uv,
            "pip",
            "install",
            "--python",
            python,
            "--no-index",
            "--find-links",
            packages.packages,
            "spawnfd",
        )
        use_python_package(python, packages, scratch / "repository", version)
        call(*uv, "pip", "uninstall", "--python", python, "spawnfd")


def check_unsupported(interpreter: Path, packages: Packages, scratch: Path) -> None:
    """A CPython that is too old: pip and uv install nothing. uv says which versions are supported.

    pip reports the reason only for a wheel that the user names.
    """
    _, pip = new_venv(interpreter, scratch)
    (wheel,) = packages.built("spawnfd-*-cp310-abi3-manylinux*_x86_64.whl")
    said = call(*pip, "install", "--no-cache-dir", "--no-index", wheel, status=1)
    check("is not a supported wheel on this platform" in said, f"pip said:\n{said}")
    call(*pip, "install", "--no-cache-dir", "--no-index", "--find-links", packages.wheels, "uv")
    uv = [scratch / "venv/bin/uv", "--offline", "--no-cache", "pip", "install", "--no-index"]
    environment = {"VIRTUAL_ENV": str(scratch / "venv")}
    said = call(*uv, "--find-links", packages.packages, "spawnfd", status=1, **environment)
    check("3.10" in said or "cp310" in said, f"uv said:\n{said}")


def check_python(packages: Packages) -> list[str]:
    """Every CPython of the root, with pip and with uv."""
    for program in ("cc", "gcc", "clang", "cargo", "rustc"):
        check(
            shutil.which(program) is None, f"the root has {program}: the wheel would prove nothing"
        )
    done = []
    interpreters = [
        path
        for path in Path("/usr/bin").glob("python3.*")
        if re.fullmatch(r"python3\.\d+t?", path.name)
    ]
    check(bool(interpreters), "the root has no CPython")
    for interpreter in sorted(interpreters, key=lambda path: (len(path.name), path.name)):
        name = interpreter.name[len("python") :]
        version = (3, int(name[2:].rstrip("t")))
        installers = (("pip", check_pip), ("uv", check_uv), ("portable", check_portable))
        for tool, installer in installers:
            with nothing_left(Path("/")), tempfile.TemporaryDirectory() as folder:
                scratch = Path(folder)
                (scratch / "repository").mkdir()
                make_repository(scratch / "repository")
                if version >= OLDEST:
                    installer(interpreter, packages, scratch, version)
                elif tool == "pip":
                    check_unsupported(interpreter, packages, scratch)
            if version >= OLDEST:
                done.append(f"cpython {name} {tool} ok")
            elif tool == "pip":
                done.append(f"cpython {name} refused")
    return done


def check_completions() -> None:
    """bash, zsh and fish find their scripts, which know the subcommands."""
    script = (
        ". /usr/share/bash-completion/completions/spawnfd; complete -p spawnfd >&2;"
        "COMP_WORDS=(spawnfd do) COMP_CWORD=1; _spawnfd spawnfd do spawnfd; echo ${COMPREPLY[@]}"
    )
    said = call("bash", "-ec", script)
    check("doctor" in said, f"bash completed:\n{said}")
    # Outside the line editor, zsh has no completion: a function in place of _describe prints it.
    script = (
        "autoload -U compinit; compinit -u -D; print -r -- $_comps[spawnfd];"
        "_describe() { print -rl -- ${(P)4} }; set -e;"
        ". /usr/share/zsh/vendor-completions/_spawnfd; _spawnfd_commands"
    )
    said = call("zsh", "-fc", script)
    check(said.startswith("_spawnfd\n") and "\ndoctor:" in said, f"zsh completed:\n{said}")
    with tempfile.TemporaryDirectory() as home:
        said = call("fish", "-c", "complete -C 'spawnfd do'", HOME=home)
    check("doctor" in said, f"fish completed:\n{said}")
    for folder in Path("/tmp").glob("fish.*"):
        shutil.rmtree(folder)


def man_page(name: str) -> None:
    """A manual page is installed, compressed and not empty."""
    page = gzip.decompress(Path("/usr/share/man", name).read_bytes()).decode()
    check(".TH" in page and ".SH" in page, f"{name} is not a manual page")


def programs_for_warm_starts() -> list[list[str]]:
    """Programs that print "hello". dash does not load libdl, which had dlsym before glibc 2.34."""
    programs = [["dash", "-c", "echo hello"], ["bash", "-c", "echo hello"]]
    if sys.version_info[:2] <= NEWEST_WARM:
        programs.append(["python3", "-c", "print('hello')"])
    return programs


def start_warm(*command: object) -> str:
    """The output of a command that starts a program warm, or reports how the program starts.

    The library gives up a parked process that takes half a second. Then the command runs again.
    """
    deadline = time.monotonic() + 60
    while "cold: slow" in (said := call(*command)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return said


def check_explain() -> None:
    """The command parks programs, in both modes."""
    for mode in ("reserve", "fork"):
        for program in programs_for_warm_starts():
            said = start_warm(
                "spawnfd", "warm", "explain", "--json", "--mode", mode, "--", *program
            )
            check(json.loads(said)["started"] == mode, f"{program} in mode {mode}: {said}")


def check_command(packages: Packages) -> list[str]:
    """The Debian package of the command."""
    (package,) = packages.built("spawnfd_*_amd64.deb")
    with nothing_left(Path("/")), tempfile.TemporaryDirectory() as folder:
        repository = Path(folder)
        make_repository(repository)
        call("dpkg", "-i", package)
        check(
            call("spawnfd", "--version").split()[-1] == packages.version,
            "spawnfd --version is wrong",
        )
        blocks = packages.examples("(?:sh|console)?", packages.readme)
        lines = [
            line
            for block, _ in blocks
            for line in block.splitlines()
            if line.startswith("spawnfd ")
        ]
        check(bool(lines), "the README has no command line")
        for line in lines:
            call("bash", "-c", line, cwd=repository)
        call("spawnfd", "run", "--capture", "--timeout", "0.2", "--", "sleep", "600", status=124)
        check_explain()
        man_page("man1/spawnfd.1.gz")
        check_completions()
        call("dpkg", "-P", "spawnfd")
    return ["command ok"]


def check_library(packages: Packages) -> list[str]:
    """The Debian package of the C library, in a root that has a C compiler."""
    built = packages.built("libspawnfd*_amd64.deb")
    names = [package.name.partition("_")[0] for package in built]
    guide = (packages.checkout / "docs/guides/c.md").read_text()
    with nothing_left(Path("/")), tempfile.TemporaryDirectory() as folder:
        call("dpkg", "-i", *built)
        check(
            call("pkg-config", "--modversion", "spawnfd").strip() == packages.version,
            "wrong version of spawnfd.pc",
        )
        flags = call("pkg-config", "--cflags", "--libs", "spawnfd").split()
        private = call("pkg-config", "--static", "--cflags", "--libs", "spawnfd").split()
        static = ["-l:libspawnfd.a" if flag == "-lspawnfd" else flag for flag in private]
        is_debian_11 = os.confstr("CS_GNU_LIBC_VERSION") == "glibc 2.31"
        options = ["-Wall", "-Wextra", "-Werror", *(["-DP_PIDFD=3"] if is_debian_11 else [])]
        used = 0
        for number, (code, output) in enumerate(packages.examples("c", guide)):
            source, program = Path(folder, f"{number}.c"), Path(folder, f"{number}")
            # The headers of Debian 11 lack a function of glibc 2.34, and a constant of glibc 2.36.
            if is_debian_11 and "addclosefrom_np" in code:
                continue
            source.write_text(code)
            for how in (flags, static):
                call("cc", *options, "-o", program, source, *how)
                printed = subprocess.run(
                    [program], stdout=subprocess.PIPE, timeout=LIMIT_S, text=True
                ).stdout
                check(printed == output, f"an example of the guide printed:\n{printed}")
                used += 1
        check(used >= 4, "the guide has too few examples")
        warm = Path(folder, "warm")
        call("cc", *options, "-o", warm, packages.checkout / "packaging/warm.c", *flags)
        for argv in programs_for_warm_starts():
            said = start_warm(warm, *argv)
            check(said == "hello\nreserve\n", f"{argv} printed: {said}")
        check_preload(Path(folder))
        for page in (
            "man2/spawn_template_create.2.gz",
            "man3/spawnfd_builder.3.gz",
            "man3/spawnfd_run.3.gz",
        ):
            man_page(page)
        call("dpkg", "-P", *names)
    return ["C library ok"]


def check_preload(folder: Path) -> None:
    """Programs below bash use the posix_spawn of the preloaded library, and bash loads it."""
    (found,) = [
        path
        for path in (LIBRARIES / "libspawnfd-spawn.so", Path("/usr/lib/libspawnfd-spawn.so"))
        if path.exists()
    ]
    (folder / "Makefile").write_text("all:\n\t@/bin/echo made >made\n")
    said = call(
        "bash",
        "-c",
        "grep -c libspawnfd-spawn /proc/$$/maps; make && cat made",
        cwd=folder,
        LD_PRELOAD=str(found),
    )
    check(said.split()[0] != "0" and said.split()[-1] == "made", f"below the preload:\n{said}")
    code = "import os; os.waitpid(os.posix_spawn('/bin/echo', ['echo', 'spawned'], os.environ), 0)"
    said = call("python3", "-c", code, LD_PRELOAD=str(found))
    check(said == "spawned\n", f"below the preload:\n{said}")
    error = "import os; os.posix_spawn('/nonexistent', ['a'], os.environ)"
    check(
        "FileNotFoundError" in call("python3", "-c", error, status=1, LD_PRELOAD=str(found)),
        "no ENOENT",
    )


def main() -> None:
    """Checks one kind of package."""
    kind, *folders = sys.argv[1:]
    checks = {"python": check_python, "command": check_command, "library": check_library}
    print(", ".join(checks[kind](Packages(*map(Path, folders)))))


if __name__ == "__main__":
    main()
