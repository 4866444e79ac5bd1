"""``ringtune tune`` in a terminal: a live table of its trials, and Ctrl-C, which keeps what was learned."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import optuna
import orjson
import pytest

from ringtune import layout
from tests.jobs.test_tune_live import SCRIPT

_COLUMNS, _LINES = 140, 50
# The line below the table once two trials were made, wherever it is wrapped; whether time was lost or won depends on
# the machine's noise.
_STATUS = re.compile(
    r"trial [2-9] of at most 16; best: fusion .*, gain -?\d+\.\d % \(-?\d+\.\d % to -?\d+\.\d %\); "
    r"(lost|won) so far \d+\.\d\d s".replace(" ", r"\s+")
)


class Terminal:
    """A command in a terminal of its own, of which it is the foreground job."""

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        self._own, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", _LINES, _COLUMNS, 0, 0))
        self._seen = b""
        self.process = subprocess.Popen(
            command, stdin=its, stdout=its, stderr=its, env=environ, start_new_session=True, preexec_fn=_take_terminal
        )
        os.close(its)

    def press(self, key: bytes) -> None:
        """Type a key."""
        os.write(self._own, key)

    def read_until(self, enough: re.Pattern[str] | None, seconds: float = 240) -> str:
        """Return what was printed so far, once the pattern is there, or with none when the command has ended."""
        deadline = time.monotonic() + seconds
        while enough is None or not enough.search(self.text):
            assert time.monotonic() < deadline, self.text
            if select.select([self._own], [], [], 1.0)[0]:
                try:
                    self._seen += os.read(self._own, 1 << 16)
                except OSError:  # the last one who had the terminal is gone
                    assert enough is None, self.text
                    break
        return self.text

    @property
    def text(self) -> str:
        """What was printed, without what moves the cursor and colours the letters."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._seen.decode(errors="replace"))

    def close(self) -> None:
        """End what is left of it."""
        if self.process.poll() is None:
            self.process.terminate()
            self.process.wait(60)
        os.close(self._own)


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.slow
def test_ctrl_c_in_a_terminal_keeps_what_was_learned(tmp_path: Path) -> None:
    script, run, memory = tmp_path / "small.py", tmp_path / "run", tmp_path / "studies.db"
    script.write_text(SCRIPT)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("RINGTUNE_", "HOROVOD_"))}
    # Rich takes a width from the environment before the terminal's own.
    environ |= {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TERM": "xterm-256color", "COLUMNS": str(_COLUMNS)}
    command = [str(Path(sys.executable).with_name("ringtune")), "tune", "-np", "2", "--run-dir", str(run)]
    command += ["--study", str(memory), "--seed", "1", sys.executable, str(script), "100000", "never"]
    terminal = Terminal(command, environ)
    try:
        screen = terminal.read_until(_STATUS)
        terminal.press(b"\x03")
        end = terminal.read_until(None)
        code = terminal.process.wait(60)
    finally:
        terminal.close()
    for word in ("trial", "setting", "step time", "gain", "source"):
        assert word in screen
    assert re.search(r"│ 0 +│ fusion 16 MiB, cycle 1 ms +│ \d[\d.]* (ms|us|s) +│ +│ default +│", screen)
    assert code == 130
    assert "training goes on with it" not in end
    assert "the trials are kept; the next session of this job starts from the best of them" in end
    events = [orjson.loads(line) for line in layout.tuning_journal(run).read_bytes().splitlines()]
    tried = [event for event in events if event["event"] == "trial"]
    assert (events[-1]["event"], events[-1]["decision"]) == ("result", "interrupted")
    (study,) = optuna.get_all_study_names(f"sqlite:///{memory}")
    kept = [
        trial for trial in optuna.load_study(study_name=study, storage=f"sqlite:///{memory}").trials if trial.values
    ]
    assert len(kept) == len(tried) >= 2
