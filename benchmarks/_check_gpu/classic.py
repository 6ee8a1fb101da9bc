"""The classic scripts, with as many GPUs as there are."""

import contextlib
import io
import pathlib
import re

_FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "classic"
ACCURACY = 0.95


def check(found, tiny):
    """Runs them with `gpus=` replaced: on one GPU, and on all."""
    from _check_gpu import parallel

    for count in parallel.counts()[-1 if tiny else 0 :]:
        printed = _run("1_data_parallel.py", count)
        accuracy = re.search(r"that was passed in: ([\d.]+)", printed)
        accuracy = float(accuracy[1]) if accuracy else float("nan")
        found.judge(
            f"1_data_parallel.py, gpus={count}: accuracy",
            accuracy,
            f"at least {ACCURACY}",
            accuracy >= ACCURACY,
        )
    count = len(parallel.gpus())
    printed = _run("3_named_outputs.py", count)
    names = re.search(r"outputs: (.*)", printed)
    names = names[1] if names else "none"
    expected = "['main_output', 'aux_output']"
    found.judge(
        f"3_named_outputs.py, gpus={count}: outputs",
        names,
        expected,
        names == expected,
    )


def _run(script, gpus):
    """What the script prints."""
    path = _FOLDER / script
    text, replaced = re.subn(r"gpus=8\)", f"gpus={gpus})", path.read_text())
    if not replaced:
        raise RuntimeError(f"no `gpus=8)` in {script}")
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(text, str(path), "exec"), {"__name__": "__main__"})
    print(printed.getvalue())
    return printed.getvalue()
