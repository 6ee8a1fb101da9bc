"""The command, on files."""

import os
import stat
import subprocess
import sys

import pytest

from keras_parallel import cli

OLD = "from keras.utils import multi_gpu_model\nmulti_gpu_model(model, 2)\n"
NEW = (
    "from keras_parallel import multi_gpu_model\n\nmulti_gpu_model(model, 2)\n"
)


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_bytes(OLD.encode())
    return path


def migrate(*arguments):
    return cli.main(["migrate", *map(str, arguments)])


def test_differences_are_shown_and_nothing_is_written(script, capsys):
    assert migrate(script) == 0
    out = capsys.readouterr().out
    assert f"--- {script}\n+++ {script}\n" in out
    assert "-from keras.utils import multi_gpu_model\n" in out
    assert "+from keras_parallel import multi_gpu_model\n" in out
    assert script.read_text() == OLD


def test_write_and_write_again(script, capsys):
    assert migrate("--write", script) == 0
    assert script.read_text() == NEW
    assert capsys.readouterr().out == f"{script}: 2 lines changed\n"
    assert migrate(script, "--write") == 0
    assert capsys.readouterr().out == f"{script}: nothing to change\n"
    assert script.read_text() == NEW
    assert os.listdir(script.parent) == ["train.py"]


def test_notes_name_the_lines_of_the_file_as_it_is(script, capsys):
    script.write_text(OLD + "model.fit_generator(data, 5, workers=4)\n")
    assert migrate(script) == 1
    shown = capsys.readouterr().out
    assert f"\nCannot decide, in {script}:\n{script}:3: `workers=4`" in shown
    assert migrate(script, "--write") == 1
    assert f"{script}:4: `workers=4` is removed" in capsys.readouterr().out
    assert script.read_text().splitlines()[3].startswith("model.fit(data")


def test_several_scripts(script, tmp_path, capsys):
    other = tmp_path / "other.py"
    other.write_text("import keras\nmodel.predict_classes(x)\n")
    assert migrate(script, other, "--write") == 1
    assert script.read_text() == NEW
    assert f"{other}:2: `predict_classes(...)`" in capsys.readouterr().out


def test_the_mode_of_the_file_stays(script):
    script.chmod(0o750)
    migrate(script, "--write")
    assert stat.S_IMODE(script.stat().st_mode) == 0o750


def test_a_link_stays_a_link(script, tmp_path):
    link = tmp_path / "link.py"
    link.symlink_to(script)
    migrate(link, "--write")
    assert link.is_symlink()
    assert script.read_text() == NEW


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("encoding", "head"),
    [
        ("utf-8", ""),
        ("utf-8-sig", ""),
        ("latin-1", "# -*- coding: latin-1 -*-\n"),
    ],
)
def test_encoding_and_newlines_stay(script, newline, encoding, head):
    """Also after the lines that are added."""
    before = (head + OLD + "# Größe\n").replace("\n", newline)
    after = (head + NEW + "# Größe\n").replace("\n", newline)
    script.write_bytes(before.encode(encoding))
    assert migrate(script, "--write") == 0
    assert script.read_bytes() == after.encode(encoding)


def test_a_file_without_a_last_newline(script, capsys):
    script.write_text(OLD.rstrip("\n"))
    migrate(script)
    assert capsys.readouterr().out.endswith("\n")
    migrate(script, "--write")
    assert script.read_text() == NEW.rstrip("\n")


def test_python_2_is_told(script, capsys):
    script.write_text(OLD + "print 'loss', loss\n")
    assert migrate(script, "--write") == 2
    error = capsys.readouterr().err
    assert f"Received: {script}:3:" in error
    assert f"`2to3 -w {script}`" in error
    assert script.read_text().startswith(OLD)


@pytest.mark.parametrize("name", ["missing.py", "."])
def test_what_is_no_file(script, capsys, name):
    """One that cannot be read: none is written."""
    assert migrate(script, script.parent / name, "--write") == 2
    assert "which is no file" in capsys.readouterr().err
    assert script.read_text() == OLD


def test_bytes_that_are_no_text(script, capsys):
    script.write_bytes(b"x = '\xff'\n")
    assert migrate(script) == 2
    assert "names its encoding" in capsys.readouterr().err


def test_no_script(capsys):
    with pytest.raises(SystemExit) as caught:
        migrate()
    assert caught.value.code == 2
    assert "script" in capsys.readouterr().err


def test_a_write_that_fails_leaves_the_file(script, monkeypatch):
    def replace(source, target):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(OSError, match="disk full"):
        migrate(script, "--write")
    assert script.read_text() == OLD
    assert os.listdir(script.parent) == ["train.py"]


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_without_libcst(script):
    done = run_python(
        "import sys; sys.modules['libcst'] = None\n"
        "from keras_parallel import cli\n"
        f"sys.exit(cli.main(['migrate', {str(script)!r}]))"
    )
    assert done.returncode == 2
    assert 'pip install -e ".[migrate]"' in done.stderr
    assert "Received: " in done.stderr


def test_nothing_is_imported_that_the_script_would():
    done = run_python(
        "import sys, keras_parallel.migrate._command\n"
        "print([m for m in ('keras', 'jax', 'tensorflow', 'numpy')"
        " if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stderr


def test_a_notebook_is_refused(tmp_path, capsys):
    path = tmp_path / "train.ipynb"
    path.write_text('{"cells": []}')
    assert migrate(path) == 2
    assert f"jupyter nbconvert --to script {path}" in capsys.readouterr().err
