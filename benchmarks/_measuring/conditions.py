"""What a figure is printed with: the machine and the versions."""

import datetime as dt
import os
import pathlib
import platform


def of_machine():
    """From the name of a condition to what it is here."""
    return {
        "date": dt.date.today().isoformat(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory": f"{_memory() / 2**30:.0f} GiB",
        "system": platform.platform(),
        "Python": platform.python_version(),
    }


def listed(facts):
    """Lines of a Markdown list."""
    return [f"- {name}: {value}" for name, value in facts.items()]


def _processor():
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [x.partition(":")[2].strip() for x in lines if "model name" in x]
    return (names or [platform.processor()])[0]


def _memory():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
