"""The program ``horovodrun``, which is there only for those who ask for it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from ringtune.alias import install_horovodrun
from tests.launch.conftest import HANG_S


@pytest.fixture(autouse=True)
def _no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


def test_it_runs_a_script_written_for_horovod(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert install_horovodrun.main([str(tmp_path)]) == 0
    program = tmp_path / "horovodrun"
    assert capsys.readouterr().out == f"{program}\n"
    script = tmp_path / "script.py"
    script.write_text("import horovod, os\nprint(os.environ['RINGTUNE_RANK'], horovod.__file__)\n", encoding="utf-8")
    done = subprocess.run(
        [program, "-np", "2", "--gloo", sys.executable, script],
        cwd=tmp_path, capture_output=True, text=True, timeout=HANG_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(line.split()[1] for line in done.stdout.splitlines()) == ["0", "1"]
    assert all("alias" in line for line in done.stdout.splitlines())
    assert install_horovodrun.main([str(tmp_path)]) == 0, "its own may be written again"
    assert install_horovodrun.main(["--remove", str(tmp_path)]) == 0 and not program.exists()


@pytest.mark.parametrize("where", ["there", "on PATH"])
def test_horovods_own_is_never_shadowed(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    own, wanted = tmp_path / "own", tmp_path / "wanted"
    for folder in (own, wanted):
        folder.mkdir()
    real = (wanted if where == "there" else own) / "horovodrun"
    real.write_text("#!/bin/sh\n", encoding="utf-8")
    real.chmod(0o755)
    monkeypatch.setenv("PATH", f"{own}{os.pathsep}/usr/bin")
    assert install_horovodrun.main([str(wanted)]) == 2
    assert f"{real} is there already and not ringtune's" in capsys.readouterr().err
    assert install_horovodrun.main(["--remove", str(wanted)]) == 2
    assert real.read_text(encoding="utf-8") == "#!/bin/sh\n"


@pytest.mark.parametrize("words", [["--help"], ["a", "b"]])
def test_other_words_are_answered_with_the_use(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert install_horovodrun.main(words) == 2
    assert capsys.readouterr().err.startswith("use: python -m ringtune.alias.install_horovodrun")


def test_it_is_not_installed_with_ringtune() -> None:
    programs = [one.name for one in metadata.distribution("ringtune").entry_points if one.group == "console_scripts"]
    assert "ringtune" in programs and "horovodrun" not in programs
