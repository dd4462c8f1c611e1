# SPDX-License-Identifier: MIT OR Apache-2.0
"""Command lines whose outcome must be the same, cold and warm. See Line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Line:
    """One command line. Each run has a new scratch directory.

    Attributes:
        id: The test's name.
        argv: The command. argv[0] is added to the Warm.
        stdin: Input by a pipe. None: /dev/null.
        env: Additions to ENVIRONMENT.
        files: Additions to FILES in the scratch directory.
        repository: The scratch directory is a git repository, with a commit and a pending change.
        unordered: stdout is compared as sorted lines.
        closed: stdout is a pipe without a reader.
        needs: Other programs that the command starts.
        cold: The expected reason for a cold start. None: the start is warm.
    """

    id: str
    argv: tuple[str, ...]
    stdin: bytes | None = None
    env: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    repository: bool = False
    unordered: bool = False
    closed: bool = False
    needs: tuple[str, ...] = ()
    cold: str | None = None


# The environment in which a program is parked. `Line.env` is added when the program runs. HOME is
# the scratch directory.
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "A U Thor",
    "GIT_AUTHOR_EMAIL": "author@example.com",
    "GIT_AUTHOR_DATE": "1750000000 +0000",
    "GIT_COMMITTER_NAME": "C O Mitter",
    "GIT_COMMITTER_EMAIL": "committer@example.com",
    "GIT_COMMITTER_DATE": "1750000000 +0000",
}

FILES = {
    "notes.txt": "one\ntwo TODO\nthree\nfour TODO\nfünf ÄÖÜ\n",
    "table.csv": "".join(f"{n},name{n % 7},{n * 37 % 101}\n" for n in range(400)),
    "data.json": '{"items": [{"n": 1, "s": "eins"}, {"n": 2, "s": "zwei"}], "ü": null}\n',
    "src/a.c": '#include <stdio.h>\nint main(void) { puts("hello"); return 3; }\n',
    "src/b.c": "int b(int x) { return x + 1; } /* TODO */\n",
    "src/deep/er/c.h": "#define C 1 /* TODO later */\n",
    "src/.hidden": "TODO hidden\n",
    "big.txt": "".join(
        f"{n:07} {n * 7919 % 100003:06} the quick brown fox\n" for n in range(60_000)
    ),
}

BIG = b"".join(b"%d line of input\n" % (n * 7919 % 100003) for n in range(50_000))
WORDS = "pear\napple\nfig\npear\nÄpfel\nZ\na\nfig\nfig\n".encode()
PATCH = b"""--- a/notes.txt
+++ b/notes.txt
@@ -1,3 +1,3 @@
 one
-two TODO
+two done
 three
"""
MAKEFILE = """
all: one two
one: src/a.c
\t@echo making $@ from $<
\tcp $< $@
two: ; sed -n 2p notes.txt > $@
bad: ; exit 3
level: ; @echo $(MAKELEVEL) $(MAKEFLAGS) $$MAKELEVEL
.PHONY: all bad level
"""
C_UTF8 = {"LC_ALL": "C.UTF-8"}
C = {"LC_ALL": "C"}
NEW_YORK = {"TZ": "EST5EDT,M3.2.0,M11.1.0"}


def sh(id: str, shell: str, script: str, **fields: Any) -> Line:
    """Returns a command line that runs a script in a shell."""
    return Line(f"{shell}-{id}", (shell, "-c", script), **fields)


# fmt: off
LINES = (
    # rg, grep
    Line("rg", ("rg", "--sort=path", "-n", "TODO", ".")),
    Line("rg-passthru", ("rg", "--sort=path", "--passthru", "-m1", "b", "src/b.c")),
    Line("rg-hidden-types", ("rg", "--sort=path", "--hidden", "-tc", "-c", "TODO")),
    Line("rg-stdin", ("rg", "-o", r"^\d*7 "), stdin=BIG),
    Line("rg-none", ("rg", "no such thing", "notes.txt")),
    Line("rg-bad-pattern", ("rg", "(", "notes.txt")),
    Line("rg-config", ("rg", "todo", "notes.txt"), env={"RIPGREP_CONFIG_PATH": "rgrc"},
         files={"rgrc": "--ignore-case\n--column\n"}),
    Line("grep", ("grep", "-rn", "TODO", "src"), unordered=True),
    Line("grep-utf8", ("grep", "-o", "f.nf", "notes.txt"), env=C_UTF8),
    Line("grep-c", ("grep", "-o", "f.nf", "notes.txt"), env=C),
    Line("grep-colors", ("grep", "--color=always", "o", "notes.txt"), env={"GREP_COLORS": "mt=04;36"}),
    Line("grep-missing", ("grep", "x", "no-such-file", "notes.txt")),
    Line("grep-stdin", ("grep", "-c", "999"), stdin=BIG),
    # sed, awk
    Line("sed", ("sed", "-n", "2,4p", "notes.txt")),
    Line("sed-in-place", ("sed", "-i.bak", "s/TODO/done/", "notes.txt", "src/b.c")),
    Line("sed-utf8", ("sed", "s/./x/g", "notes.txt"), env=C_UTF8),
    Line("sed-c", ("sed", "s/./x/g", "notes.txt"), env=C),
    Line("sed-error", ("sed", "s/a", "notes.txt")),
    Line("sed-quit", ("sed", "3q;w copy"), stdin=BIG),
    Line("awk", ("awk", "-F,", '{ n[$2] += $3 } END { for (k in n) print k, n[k] }', "table.csv"), unordered=True),
    Line("awk-environment", ("awk", 'BEGIN { print ENVIRON["X"], length(ENVIRON["PATH"]) }'), env={"X": "a b"}),
    Line("awk-commands", ("awk", 'BEGIN { "echo hi" | getline x; print x; print 3 | "cat"; close("cat"); exit system("exit 3") }')),
    Line("awk-stdin", ("awk", "{ s += $1 } END { printf \"%.3f\\n\", s }"), stdin=BIG),
    # cat, head, tail
    Line("cat-large", ("cat", "big.txt")),
    Line("cat-stdin", ("cat", "-n", "notes.txt", "-"), stdin=b"from a pipe\0 with a zero"),
    Line("cat-missing", ("cat", "no-such-file", "notes.txt")),
    Line("cat-sigpipe", ("cat", "big.txt"), closed=True),
    Line("cat-environ", ("cat", "/proc/self/environ"), env={"A": "1", "LAST": "ü"}),
    Line("cat-cmdline", ("cat", "/proc/self/cmdline", "notes.txt", "")),
    Line("cat-limits", ("cat", "/proc/self/limits", "/proc/self/comm", "/proc/self/oom_score_adj")),
    Line("head", ("head", "-n", "3", "big.txt")),
    Line("head-stdin", ("head", "-c", "70001"), stdin=BIG),
    Line("head-sigpipe", ("head", "-n", "50000", "big.txt"), closed=True),
    Line("tail", ("tail", "-n", "4", "big.txt", "notes.txt")),
    Line("tail-stdin", ("tail", "-n", "+49998"), stdin=BIG),
    # find, stat, ls
    Line("find", ("find", ".", "-type", "f", "-name", "*.c", "-printf", "%P %s %m %TY\n"), unordered=True),
    Line("find-exec", ("find", "src", "-name", "*.c", "-exec", "wc", "-c", "{}", ";"), unordered=True),
    Line("find-delete", ("find", "src/deep", "-delete", "-print")),
    Line("find-missing", ("find", "nowhere")),
    Line("find-descriptors", ("find", "/proc/self/fd", "-mindepth", "1", "-printf", "%f %m\n"), unordered=True),
    Line("stat", ("stat", "-c", "%n %s %a %U %G %y %F", "notes.txt", "src")),
    Line("stat-zone", ("stat", "-c", "%y", "notes.txt"), env=NEW_YORK),
    Line("stat-failure", ("stat", "nowhere")),
    Line("ls", ("ls", "-lA", "--time-style=full-iso", ".")),
    Line("ls-recursive", ("ls", "-RF1", "src"), env={"LC_ALL": "C", "LS_COLORS": "di=31"}),
    Line("ls-zone", ("ls", "-l", "notes.txt"), env=NEW_YORK),
    Line("ls-columns", ("ls", "-C"), env={"COLUMNS": "30", "QUOTING_STYLE": "c"}),
    # git
    Line("git-status", ("git", "status"), repository=True),
    Line("git-status-porcelain", ("git", "status", "--porcelain=v2", "--branch"), repository=True),
    Line("git-diff", ("git", "diff"), repository=True),
    Line("git-diff-stat", ("git", "diff", "--stat", "--exit-code"), repository=True),
    Line("git-log", ("git", "log", "--stat", "-p"), repository=True),
    Line("git-log-zone", ("git", "log", "--date=iso-local", "--format=%ad %cd %s"), repository=True, env=NEW_YORK),
    Line("git-show", ("git", "show", "--no-color", "HEAD:notes.txt"), repository=True),
    Line("git-grep", ("git", "grep", "-n", "TODO"), repository=True),
    Line("git-commit", ("git", "commit", "-am", "more"), repository=True),
    Line("git-commit-editor", ("git", "commit", "-a"), repository=True,
         env={"GIT_EDITOR": "echo edited >"}),
    Line("git-commit-nothing", ("git", "commit", "-m", "x"), repository=True),
    Line("git-hook", ("git", "commit", "-qam", "x"), repository=True,
         files={".git/hooks/pre-commit": "#!/bin/sh\necho hook $GIT_INDEX_FILE >&2\nexit 7\n"}),
    Line("git-paging", ("git", "--paginate", "log", "--oneline"), repository=True, env={"GIT_PAGER": "sed s/^/P:/", "LESS": "-F"}),
    Line("git-variables", ("git", "var", "-l"), repository=True, env={"GIT_PAGER": "sed s/^/P:/", "VISUAL": "vis", "GIT_EDITOR": "ed"}),
    Line("git-alias", ("git", "-c", "alias.x=!echo $GIT_PREFIX alias; exit 4", "x"), repository=True),
    Line("git-elsewhere", ("git", "rev-parse", "HEAD"), env={"GIT_CEILING_DIRECTORIES": "/"}),
    Line("git-trace", ("git", "stash"), repository=True),
    # shells
    sh("pipeline", "sh", "cat notes.txt | grep TODO | wc -l"),
    sh("cd", "sh", "cd src && pwd && ls; cd deep/er; pwd -P; echo $OLDPWD"),
    sh("cd", "bash", "cd src && rg --sort=path -n TODO . | head -n 1; echo ${PIPESTATUS[@]}", needs=("rg",)),
    sh("environment", "sh", "env | sort; echo $HOME; unset PATH; echo ${PATH-unset}", env={"ENV": "rc"}),
    sh("exports", "bash", "export -p; echo $0 $# $- $SHLVL; set -o | head -n 4", env={"BASH_ENV": "rc", "SHLVL": "4"},
       files={"rc": "FROM_RC=1; echo rc $FROM_RC\n"}),
    sh("exported-function", "bash", "greet you", env={"BASH_FUNC_greet%%": "() { echo hello $1; }"}),
    sh("sigpipe", "bash", "set -o pipefail; yes | head -n 3; echo ${PIPESTATUS[@]}; yes | head -n 1"),
    sh("trap-exit", "bash", "trap 'echo bye $?' EXIT; trap 'echo usr1' USR1; kill -USR1 $$; false; exit 3"),
    sh("traps-listed", "bash", "trap; trap '' PIPE; trap; trap -l | sed -n 1,2p"),
    sh("killed", "sh", "kill -TERM $$; echo survived"),
    sh("killed", "bash", "kill -KILL $$"),
    sh("jobs", "bash", "set -m; sleep 1000 & jobs; kill %1; wait %1; echo $?; (exit 5) & wait $!; echo $?"),
    sh("background", "sh", "for n in 1 2 3; do (exit $n) & wait $! || echo $?; done; true & wait"),
    sh("substitution", "bash", 'x=$(cd src; echo *.c); echo "$x" `echo old` $((6*7)); cat <(echo process) < <(echo in)'),
    sh("here-document", "bash", "cat <<EOF; cat <<'EOF'; cat <<<\"$HOME\"\n$((1+1)) $(echo sub)\nEOF\n$literal\nEOF\n"),
    sh("here-document", "dash", "cat <<EOF\n$((2*21)) `echo sub`\nEOF\nread x <<EOF\na  b\nEOF\necho \"$x\""),
    sh("syntax-error", "sh", "if then"),
    sh("syntax-error", "bash", "echo 'unterminated"),
    sh("not-found", "sh", "no-such-command; echo $?; ./notes.txt; echo $?"),
    sh("redirections", "dash", "exec 3>out 4<notes.txt; read x <&4; echo \"$x\" >&3; echo err >&2; exec 3>&-; cat out"),
    sh("umask", "sh", "umask; touch made; umask 077; mkdir private; ulimit -n; ulimit -s"),
    sh("length-utf8", "bash", "x=fünf; echo ${#x} ${x^^}; [[ ü > z ]]; echo $?", env=C_UTF8),
    sh("length-c", "bash", "x=fünf; echo ${#x} ${x^^}; [[ ü > z ]]; echo $?", env=C),
    sh("time", "bash", "printf '%(%F %T %Z)T\\n' 1750000000; TIMEFORMAT=; time true", env=NEW_YORK),
    sh("times-out", "bash", "mkfifo p; exec 3<>p; rm p; read -t 0.01 x <&3; echo $?; (sleep 0.05; kill -ALRM $$) & wait", needs=("mkfifo",)),
    sh("descriptors", "dash", "ls /proc/self/fd | wc -l; [ -t 0 ] || echo no terminal"),
    Line("bash-stdin", ("bash", "-s", "a", "b"), stdin=b"echo $1-$2; read line; echo after $line\nthis is read\nexit 9\n"),
    Line("sh-script", ("sh", "script", "one two"), files={"script": 'echo "$0" "$1" $#\n. ./inc\nexit 2\n', "inc": "echo included\n"}),
    Line("bash-login", ("bash", "-lc", "echo $MINE; shopt -q login_shell; echo $?"), files={".bash_profile": "MINE=profile\n"}),
    Line("bash-large", ("bash", "-c", "for ((i = 0; i < 20000; i++)); do echo line $i; done")),
    # perl
    Line("perl", ("perl", "-F,", "-lane", '$n += $F[2]; END { print $n, " ", $ENV{X} // "none", " @INC" }', "table.csv")),
    Line("perl-in-place", ("perl", "-pi", "-e", "s/TODO/done/", "notes.txt")),
    Line("perl-fork", ("perl", "-e", "$|=1; my $p = fork; unless ($p) { print qq(child\\n); exit 6 } waitpid $p, 0; print $? >> 8, qq(\\n); print `echo sub`; die qq(end\\n)")),
    Line("perl-signals", ("perl", "-MPOSIX", "-e", "$SIG{ALRM} = sub { print qq(alarm\\n); exit 4 }; alarm 1; pause")),
    Line("perl-zone", ("perl", "-MPOSIX", "-e", "print scalar localtime(1750000000), q( ), setlocale(LC_ALL, ''), qq(\\n)"), env=NEW_YORK | C_UTF8),
    Line("perl-locale", ("perl", "-e", "print 1")  , env={"LC_ALL": "no_SUCH.UTF-8"}),
    Line("perl-variables", ("perl", "-e", "print $INC[0], ' ', \"@ARGV $0 $^X\\n\"", "x"), env={"PERL5LIB": "lib", "PERL5OPT": "-w"}),
    # sort, uniq, wc, cut, tr
    Line("sort-utf8", ("sort", "-f"), stdin=WORDS, env=C_UTF8),
    Line("sort-c", ("sort", "-u"), stdin=WORDS, env=C),
    Line("sort-large", ("sort", "-k2,2n", "-S", "1M", "--parallel=2", "big.txt"), env={"TMPDIR": "."}),
    Line("uniq", ("uniq", "-c"), stdin=b"a\na\nb\na\n"),
    Line("wc-utf8", ("wc", "-lwmc", "notes.txt"), env=C_UTF8),
    Line("wc-c", ("wc", "-lwmc", "notes.txt"), env=C),
    Line("cut", ("cut", "-d,", "-f2-", "--output-delimiter=:", "table.csv")),
    Line("tr", ("tr", "a-z\\n", "A-Z "), stdin=BIG),
    Line("tr-error", ("tr", "a")),
    # xargs, diff, patch, make
    Line("xargs", ("xargs", "-n", "2", "echo", "got"), stdin=b"a b 'c d' e\n"),
    Line("xargs-parallel", ("xargs", "-0", "-P", "4", "-I{}", "sh", "-c", "echo {}; exit 1"), stdin=b"1\0002\0003\0004", unordered=True),
    Line("xargs-default", ("xargs",), stdin=BIG),
    Line("diff", ("diff", "-u", "--label=a", "--label=b", "notes.txt", "src/b.c")),
    Line("diff-directories", ("diff", "-rq", "src", "src/deep")),
    Line("diff-missing", ("diff", "nowhere", "notes.txt")),
    Line("patch", ("patch", "-p1"), stdin=PATCH),
    Line("patch-rejected", ("patch", "-p1", "--forward", "src/b.c"), stdin=PATCH),
    Line("make", ("make", "-j2", "--output-sync"), files={"Makefile": MAKEFILE}, unordered=True),
    Line("make-failure", ("make", "-k", "bad", "two"), files={"Makefile": MAKEFILE}),
    Line("make-variables", ("make", "level", "SHELL=/bin/bash"), files={"Makefile": MAKEFILE}, env={"MAKEFLAGS": "k", "MAKELEVEL": "2"}),
    Line("make-nothing", ("make", "-n", "-C", "src")),
    # tar, gzip, jq, curl, ssh, gcc
    Line("tar", ("tar", "--sort=name", "--mtime=@0", "--format=gnu", "-cvf", "out.tar", "src", "notes.txt")),
    Line("tar-gzip", ("tar", "-czf", "-", "--sort=name", "--mtime=@0", "src"), needs=("gzip",)),
    Line("tar-error", ("tar", "-xf", "notes.txt")),
    Line("gzip", ("gzip", "-9nk", "big.txt")),
    Line("gzip-stdin", ("gzip", "-nc"), stdin=BIG),
    Line("gzip-error", ("gzip", "-dc", "notes.txt"), env={"GZIP": ""}),
    Line("jq", ("jq", "-r", ".items[] | [.n, .s] | @tsv", "data.json")),
    Line("jq-environment", ("jq", "-n", "env.X, $ENV.TZ, (1750000000 | localtime | mktime)"), env={"X": "ü"} | NEW_YORK),
    Line("jq-error", ("jq", ".a.b.c["), stdin=b"{}"),
    Line("curl-file", ("curl", "-s", "file:///proc/self/cmdline")),
    Line("curl-refused", ("curl", "-s", "http://127.0.0.1:1/"), env={"http_proxy": ""}),
    Line("curl-version", ("curl", "--version")),
    Line("ssh-version", ("ssh", "-V")),
    Line("ssh-config", ("ssh", "-G", "-F", "config", "host"), files={"config": "Host host\n  Port 2222\n"}),
    Line("gcc-version", ("gcc", "--version")),
    Line("gcc", ("gcc", "-O1", "-c", "src/b.c", "-o", "b.o")),
    Line("gcc-stdin", ("gcc", "-E", "-P", "-x", "c", "-"), stdin=b"#define X 4\nX + __LINE__\n", env={"CPATH": "src"}),
    Line("gcc-error", ("gcc", "-c", "notes.txt", "-x", "c", "src/deep/er/c.h", "nowhere.c")),
)
# fmt: on
