"""The command: reads scripts, shows or writes what becomes of them."""

import contextlib
import difflib
import io
import os
import pathlib
import shutil
import sys
import tempfile
import tokenize
from collections.abc import Iterable

from keras_parallel._errors import MigrationError

try:
    import libcst
except ImportError as error:
    raise MigrationError(
        "Scripts are rewritten with LibCST, which is an extra. Received: "
        f'{error}. From a clone: `pip install -e ".[migrate]"`, or '
        "`pip install libcst`."
    ) from error

from keras_parallel.migrate import _rewrite


def run(paths: Iterable[str], write: bool) -> int:
    """Migrates scripts, and prints the differences and the notes.

    Args:
        paths: Python files.
        write: Whether to change the files; otherwise differences are shown.

    Returns:
        0 if all could be decided, 1 if notes remain.

    Raises:
        MigrationError: if a file cannot be read as Python 3. Then no file
            was changed.
    """
    scripts = [_Script(path) for path in paths]
    for script in scripts:
        script.report(write)
    return int(any(script.migration.notes for script in scripts))


class _Script:
    def __init__(self, path):
        self.path = path
        self.encoding, self.old = _read(path)
        try:
            self.migration = _rewrite.migrate(self.old)
        except libcst.ParserSyntaxError as error:
            raise MigrationError(
                "A script to migrate is Python 3. Received: "
                f"{path}:{error.raw_line}: {error.message.splitlines()[0]} "
                "If it is Python 2, for example with `print x`, run 2to3 "
                "first (it came with Python up to 3.12): "
                f"`2to3 -w {path}`."
            ) from None

    def report(self, write):
        old = self.old.splitlines(keepends=True)
        new = self.migration.text.splitlines(keepends=True)
        number = {}
        if write and old != new:
            _write(self.path, self.migration.text, self.encoding)
            number = _moved_lines(old, new)
            count = _changed_lines(old, new)
            lines = "line" if count == 1 else "lines"
            print(f"{self.path}: {count} {lines} changed")
        elif old != new:
            sys.stdout.writelines(
                line if line.endswith("\n") else line + "\n"
                for line in difflib.unified_diff(
                    [_shown(line) for line in old],
                    [_shown(line) for line in new],
                    self.path,
                    self.path,
                )
            )
        else:
            print(f"{self.path}: nothing to change")
        if self.migration.notes:
            print(f"\nCannot decide, in {self.path}:")
        for note in self.migration.notes:
            line = number.get(note.line, note.line)
            print(f"{self.path}:{line}: {note.text}")


def _read(path):
    file = pathlib.Path(path)
    if not file.is_file():
        raise MigrationError(
            f"A script to migrate is a file. Received: {path!r}, which is no "
            "file. `keras-parallel migrate train.py` shows what would change."
        )
    if file.suffix == ".ipynb":
        raise MigrationError(
            f"A script to migrate is Python, not a notebook. Received: "
            f"{path!r}. Save it as a script first: "
            f"`jupyter nbconvert --to script {path}`."
        )
    data = file.read_bytes()
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        return encoding, data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise MigrationError(
            "A script to migrate is text in UTF-8, or names its encoding in "
            f"its first lines. Received: {path!r}: {error}. "
            "`# -*- coding: latin-1 -*-` as the first line names one."
        ) from error


def _write(path, text, encoding):
    """Replaces a file as a whole, so that none is left half written."""
    path = os.path.realpath(path)
    handle, temporary = tempfile.mkstemp(
        dir=os.path.dirname(path), prefix=f".{os.path.basename(path)}."
    )
    try:
        with open(handle, "wb") as file:
            file.write(text.encode(encoding))
        shutil.copymode(path, temporary)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.remove(temporary)
        raise


def _shown(line):
    return line.rstrip("\r\n") + "\n"


def _opcodes(old, new):
    return difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()


def _changed_lines(old, new):
    return sum(
        max(i2 - i1, j2 - j1)
        for tag, i1, i2, j1, j2 in _opcodes(old, new)
        if tag != "equal"
    )


def _moved_lines(old, new):
    """From a line of the old text to the one that stands for it."""
    return {
        i + 1: min(j1 + i - i1, max(j2 - 1, j1)) + 1
        for _, i1, i2, j1, j2 in _opcodes(old, new)
        for i in range(i1, i2)
    }
