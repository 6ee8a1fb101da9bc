"""One part: `python child.py ORDER FOUND`, started by `children.py`."""

import importlib
import json
import pathlib
import sys

_BENCHMARKS = pathlib.Path(__file__).parents[1]
# `src` comes first: this tree is checked, whatever is installed.
for _folder in (_BENCHMARKS.parent, _BENCHMARKS, _BENCHMARKS.parent / "src"):
    sys.path.insert(0, str(_folder))
sys.path.remove(str(pathlib.Path(__file__).parent))


def main():
    from _check_gpu.findings import Findings
    from _check_gpu.parts import FUNCTIONS

    order = json.loads(sys.argv[1])
    module, name = FUNCTIONS[order["part"]]
    function = getattr(importlib.import_module(module), name)
    function(Findings(sys.argv[2]), order["tiny"], **order["options"])


if __name__ == "__main__":
    main()
