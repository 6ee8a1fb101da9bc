"""The report: a Markdown table, and what failed."""

from _check_gpu.findings import FAILED
from _check_gpu.findings import OK
from _measuring import ratios

NOT_RUN = "not run"
_HEADER = ["part", "checked", "bound", "found", "seconds", "result"]


def rows_of(part, outcome):
    """The rows of a part, the last one for what kept it from its end."""
    rows = [{"part": part, **row} for row in outcome.rows]
    problem = outcome.problem
    if not problem and not rows:
        problem = "it found nothing"
    if problem:
        rows.append(
            {
                "part": part,
                "what": "the part itself",
                "bound": "runs to its end",
                "found": problem,
                "seconds": round(outcome.seconds, 1),
                "result": FAILED,
            }
        )
    return rows


def not_run(part, why):
    """The row of a part that was not started."""
    return {
        "part": part,
        "what": "the part itself",
        "bound": "",
        "found": "",
        "seconds": 0.0,
        "result": f"{NOT_RUN}: {why}",
    }


def is_bad(row):
    return row["result"] == FAILED or row["result"].startswith(NOT_RUN)


def table(rows):
    """Lines of a Markdown table."""
    cells = [
        [_cell(row[key]) for key in ("part", "what", "bound", "found")]
        + [row["seconds"], _cell(row["result"])]
        for row in rows
    ]
    return ratios.table(_HEADER, cells)


def verdict(rows):
    """The last line."""
    judged = sum(row["result"] == OK for row in rows)
    bad = sum(map(is_bad, rows))
    if bad:
        return f"{bad} of {judged + bad} checks failed or did not run"
    return f"all {judged} checks are ok"


def _cell(value):
    return " ".join(str(value).replace("|", "/").split())
