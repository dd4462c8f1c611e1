# SPDX-License-Identifier: MIT OR Apache-2.0
"""Computes compare.json from measured subjects, and prints the table."""

import math
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from common import session
from common.session import Row
from common.tables import ratio_figure, show_left_out

from .judge import CONFIDENCE, Interval, Judged, Verdict
from .measure import Subject

INTERVAL = f"{100 * CONFIDENCE:.0f} % interval of the trimmed mean over sessions"
STYLES = {Verdict.SLOWER: "red", Verdict.FASTER: "green", Verdict.NOISY: "yellow"}


def _ratio(interval: Interval, better: str) -> tuple[float, float, float]:
    """new / base of the figures. For a rate, the change has the opposite sign."""
    if better == "less":
        value, low, high = interval.value, interval.low, interval.high
    else:
        value, low, high = -interval.value, -interval.high, -interval.low
    return math.exp(value), math.exp(low), math.exp(high)


def _verdict(judged: Judged) -> str:
    if judged.verdict is Verdict.SAME:
        return f"{Verdict.SAME} {judged.within:.1%}".replace("%", " %")
    return str(judged.verdict)


def ratios_of(subject: Subject, barred: Mapping[str, Any], count: int) -> list[Row]:
    """Returns one ratio for each id of a subject."""
    judged = subject.judge(count)
    value, low, high = _ratio(judged.interval, subject.better)
    _, sure_low, sure_high = _ratio(judged.sure, subject.better)
    pairs = [pair for session in subject.sessions for pair in session]
    kind = "time" if subject.better == "less" else "rate"
    return [
        {
            "id": id_,
            "value": round(value, 4),
            "low": round(low, 4),
            "high": round(high, 4),
            "meaning": f"new / base, our {kind}: {subject.quantities[1]}",
            "sure_low": round(sure_low, 4),
            "sure_high": round(sure_high, 4),
            "verdict": _verdict(judged),
            "regression": id_ in barred and judged.verdict is Verdict.SLOWER,
            "barred": id_ in barred,
            "unit": subject.unit,
            "better": subject.better,
            "base": round(median(base for base, _ in pairs), 2),
            "new": round(median(new for _, new in pairs), 2),
            "sessions": len(subject.sessions),
            "pairs": len(pairs),
        }
        for id_ in subject.ids
    ]


def suite(
    subjects: Sequence[Subject],
    alone: Mapping[str, str],
    barred: Mapping[str, Any],
    machine: Mapping[str, object],
) -> Row:
    """Returns the whole content of compare.json."""
    count = sum(subject.barred for subject in subjects)
    missing = {
        id_: "; ".join(f"{side}: {why}" for side, why in subject.missing.items())
        for subject in subjects
        if subject.missing
        for id_ in subject.ids
    }
    lost = {id_ for s in subjects if s.missing.keys() == {"new"} for id_ in s.ids}
    measured = [subject for subject in subjects if not subject.missing]
    rows = [
        {
            "ids": s.ids,
            "quantities": list(s.quantities),
            "unit": s.unit,
            "calls": s.calls,
            "changes": [round(change, 5) for change in s.changes()],
            "sessions": s.sessions,
        }
        for s in measured
    ]
    return session.suite(
        "compare",
        machine,
        [ratio for s in measured for ratio in ratios_of(s, barred, count)],
        rows,
        interval=INTERVAL,
        judged=count,
        left_out={**alone, **missing},
        lost=sorted(lost & barred.keys()),
    )


def regressions(document: Row) -> list[str]:
    """Returns the ids with a bar that became slower, and the ids that only BASE can measure."""
    slower = [ratio["id"] for ratio in document["ratios"] if ratio["regression"]]
    return [*slower, *document["lost"]]


def show(console: Console, document: Row) -> None:
    """Prints the table, the parts left out, and the outcome."""
    table = Table("Id", "Base", "New", "", "New / base", "95 %", "Verdict", title_justify="left")
    for ratio in document["ratios"]:
        bar = "" if ratio["barred"] else " (no bar)"
        style = next((s for verdict, s in STYLES.items() if ratio["verdict"] == verdict), "")
        table.add_row(
            ratio["id"],
            f"{ratio['base']:,.1f}",
            f"{ratio['new']:,.1f}",
            ratio["unit"],
            *ratio_figure(ratio),
            ratio["verdict"] + bar,
            style=style,
        )
    console.print(table)
    show_left_out(console, document)
    noisy = [ratio["id"] for ratio in document["ratios"] if ratio["verdict"] == Verdict.NOISY]
    if noisy:
        console.print(f"not judged, too noisy: {', '.join(noisy)}", highlight=False)
    found = regressions(document)
    outcome = f"regressions: {', '.join(found)}" if found else "no regression"
    console.print(outcome, highlight=False, style="red" if found else "green")
