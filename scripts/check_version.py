"""Fails when CHANGELOG.md does not begin with the version of the package."""

import pathlib
import re
import sys

root = pathlib.Path(__file__).parent.parent
package = (root / "src/keras_parallel/__init__.py").read_text()
version = re.search(r'^__version__ = "(.+)"$', package, re.M)[1]
latest = re.search(r"^## (\S+)", (root / "CHANGELOG.md").read_text(), re.M)[1]
if latest != version:
    sys.exit(f"CHANGELOG.md begins with {latest}, the package is {version}")
