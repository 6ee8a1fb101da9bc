"""What a part found: rows of the table, kept as soon as they are there."""

import json
import time

OK, FAILED, SHOWN = "ok", "FAILED", "shown"


class Findings:
    """Writes rows to a file, so that what hangs later takes none along.

    Args:
        path: The file: one line of JSON for each row.
    """

    def __init__(self, path):
        self._path = path
        self._since = time.perf_counter()

    def judge(self, what, found, bound, good):
        """A row that passes or fails."""
        self._row(what, found, bound, OK if good else FAILED)

    def at_most(self, what, found, bound, shown="{:.2g}"):
        """A row that passes if the number `found` is at most `bound`."""
        # Not a number is not at most anything.
        self.judge(
            what, shown.format(found), f"at most {bound:g}", found <= bound
        )

    def show(self, what, found):
        """A row for the reader, which is not judged."""
        self._row(what, found, "", SHOWN)

    def keep(self, **data):
        """Data for whoever started the part."""
        self._write({"data": data})

    def print(self, text):
        """Text to print below the table."""
        self._write({"text": str(text)})

    def _row(self, what, found, bound, result):
        now = time.perf_counter()
        self._write(
            {
                "what": what,
                "bound": bound,
                "found": str(found),
                "seconds": round(now - self._since, 1),
                "result": result,
            }
        )
        self._since = now

    def _write(self, line):
        with open(self._path, "a") as file:
            print(json.dumps(line), file=file)


def read(path):
    """The rows, the data and the texts of a part.

    A line that a killed process left unfinished is left out.
    """
    rows, data, texts = [], {}, []
    try:
        lines = path.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if "data" in found:
            data |= found["data"]
        elif "text" in found:
            texts.append(found["text"])
        else:
            rows.append(found)
    return rows, data, texts
