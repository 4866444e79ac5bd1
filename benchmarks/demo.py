"""`make demo`: trains, tunes and measures on two ranks and leaves one run folder with a report.

    python -m ringtune.benchmarks.demo --out runs/demo

Every part is the command that a user would type; its output goes to `<out>.log`, and one line a part sums up the
result. The tuning session is a job of its own (`<out>-tune`); its journal is also put into `<out>`, where the trace and
the scaling record are, so that one report shows everything.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from ringtune import layout
from ringtune.benchmarks.harness.progress import open_console, open_progress
from ringtune.benchmarks.harness.statistics import share_text
from ringtune.errors import RingtuneError, UsageError
from ringtune.timeline.units import bytes_text, time_text

EXAMPLES = Path(__file__).parent / "examples"
REQUIRED_ACCURACY = 0.95
# Where steps are so short that the first training is over before the search, a longer one starts from what it learned.
TUNING_EPOCHS = (120, 400)
# One computing thread per rank: two ranks then fit on two cores and one rank is not faster for having both.
THREADS = {"OMP_NUM_THREADS": "1"}
# Lines shown of a command that failed.
SHOWN_LINES = 25


@dataclass(frozen=True)
class Demo:
    """Where the demo writes.

    Args:
        out: run folder of the training, of the report and of the scaling record.
    """

    out: Path

    @property
    def tuning(self) -> Path:
        """Run folder of the tuning session."""
        return self.out.with_name(f"{self.out.name}-tune")

    @property
    def log(self) -> Path:
        """What the commands printed."""
        return self.out.with_name(f"{self.out.name}.log")

    @property
    def report(self) -> Path:
        """The self-contained page."""
        return self.out / "report.html"

    @property
    def result(self) -> Path:
        """Loss and accuracy of the training."""
        return self.out / "digits.json"

    def train(self) -> str:
        """Trains on real data with the timeline on."""
        run = ["run", "-np", "2", "--run-dir", str(self.out), "--timeline", str(layout.timeline_file(self.out))]
        self._ringtune(*run, sys.executable, str(EXAMPLES / "digits.py"), "--json", str(self.result))
        result = self._read(self.result)
        accuracy = result["accuracy"]
        if accuracy < REQUIRED_ACCURACY:
            raise RingtuneError(f"the training reached {accuracy:.1%} accuracy, expected {REQUIRED_ACCURACY:.0%}")
        return f"accuracy {accuracy:.2%} on handwritten digits, loss {result['loss']:.6f}"

    def summarize(self) -> str:
        """Prints where the time of the training went."""
        trace = layout.timeline_file(self.out)
        self._ringtune("timeline", "summary", str(trace))
        return f"{trace} opens in Perfetto"

    def tune(self) -> str:
        """Searches better knobs while a longer training runs, and keeps the journal beside the trace."""
        tune = ["tune", "-np", "2", "--run-dir", str(self.tuning), "--max-trials", "8", "--steps-per-trial", "15"]
        for epochs in TUNING_EPOCHS:
            clear(self.tuning)
            self._ringtune(*tune, sys.executable, str(EXAMPLES / "digits.py"), "--epochs", str(epochs))
            decision = self.decision()
            if decision is not None and decision["decision"] != "interrupted":
                break
        else:
            raise RingtuneError(f"the training ended before the tuner had decided; see {self.tuning}")
        shutil.copytree(layout.tuning_journal(self.tuning).parent, layout.tuning_journal(self.out).parent)
        return decision_text(decision)

    def measure(self) -> str:
        """Measures scaling of ResNet-50 on small images, beside torch's DDP."""
        bench = ["bench", "resnet", "-np", "1,2", "--model", "resnet50", "--batch-size", "8", "--image-size", "64"]
        sampling = ["--num-warmup-batches", "2", "--num-batches-per-iter", "1", "--num-iters", "8", "--rounds", "2"]
        self._ringtune(*bench, *sampling, "--peers", "ddp-gloo", "--run-dir", str(self.out))
        records = sorted(layout.scaling_folder(self.out).glob("*.json"))
        return "; ".join(line for path in records for line in scaling_lines(self._read(path)))

    def write_report(self) -> str:
        """Writes everything into one page."""
        self._ringtune("report", str(self.out), "--output", str(self.report))
        if not self.report.is_file():
            raise RingtuneError(f"no report was written to {self.report}")
        return str(self.report)

    def decision(self) -> dict[str, Any] | None:
        """Returns the tuner's last result in the journal, None when there is none."""
        journal = layout.tuning_journal(self.tuning)
        if not journal.is_file():
            return None
        events = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
        results: list[dict[str, Any]] = [event for event in events if event["event"] == "result"]
        return results[-1] if results else None

    def _ringtune(self, *words: str) -> None:
        command = [sys.executable, "-m", "ringtune.cli", *words]
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"$ ringtune {shlex.join(words)}\n")
            log.flush()
            code = subprocess.run(
                command, env={**os.environ, **THREADS}, stdout=log, stderr=subprocess.STDOUT, check=False
            ).returncode
        if code != 0:
            last = "".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines(True)[-SHOWN_LINES:])
            raise RingtuneError(f"'ringtune {words[0]}' failed with exit code {code}; the end of {self.log}:\n{last}")

    def _read(self, path: Path) -> Any:
        return json.loads(path.read_text(encoding="utf-8"))


def decision_text(decision: dict[str, Any]) -> str:
    """Returns the tuner's result in a sentence."""
    knobs, gain = decision["knobs"], decision["gain"]
    setting = f"{bytes_text(knobs['fusion_bytes'])} fusion buffer, {time_text(knobs['cycle_time_ns'])} cycle time"
    if decision["decision"] == "improved":
        bounds = f"95 % interval {gain['low']:.1%} to {gain['high']:.1%}"
        return f"better than the default by {gain['median']:.1%} ({bounds}): {setting}"
    return f"{decision['decision']}: {setting}; {decision['reason']}"


def scaling_lines(record: dict[str, Any]) -> list[str]:
    """Returns a line for each participant at the largest rank count of a scaling record."""
    lines = []
    for name, rows in {"ringtune": record["records"], **{k: v["records"] for k, v in record["peers"].items()}}.items():
        row = rows[-1]
        efficiency, rate = row["efficiency"], row["rate"]["median"]
        lines.append(
            f"{record['model']}, {name}: {rate:.1f} {record['unit']} on {row['ranks']} ranks, "
            f"efficiency {share_text(efficiency)}"
        )
    return lines


def dashboard_command(out: Path) -> str:
    """Returns what to type for the dashboard over the folder of `out`."""
    if out.parent == Path(layout.RUNS_FOLDER):
        return "make dashboard"
    return shlex.join(["ringtune", "dashboard", str(out.parent)])


def clear(folder: Path) -> None:
    """Removes an earlier demo's run folder.

    Raises:
        UsageError: the folder holds something else.
    """
    if not folder.exists():
        return
    if not folder.is_dir() or (not layout.is_run(folder) and any(folder.iterdir())):
        raise UsageError(f"{folder} exists and is no run folder; choose another --out")
    shutil.rmtree(folder)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/demo"), show_default=True)
def demo(out: Path) -> None:
    """Train, tune and measure on two ranks; leaves a run folder with the merged trace and report.html."""
    console = open_console()
    show = Demo(out)
    clear(show.out)
    clear(show.tuning)
    show.out.parent.mkdir(parents=True, exist_ok=True)
    show.log.unlink(missing_ok=True)
    parts: tuple[tuple[str, Callable[[], str]], ...] = (
        ("training on 2 ranks", show.train),
        ("where the time went", show.summarize),
        ("tuning while it trains", show.tune),
        ("scaling from 1 to 2 ranks", show.measure),
        ("report", show.write_report),
    )
    with open_progress(console, "demo", len(parts)) as reporter:
        for title, part in parts:
            reporter.begin(title)
            begin = time.monotonic()
            result = part()
            reporter.advance(f"{title} ({time.monotonic() - begin:.0f} s): {result}", keep=True)
    console.print(f"all output: {show.log}; to look around: {dashboard_command(out)}", soft_wrap=True)


def main() -> int:
    """Runs the demo; returns the exit code."""
    try:
        demo(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except click.Abort:
        return 130
    except RingtuneError as error:
        click.secho(f"demo: {error}", fg="red", err=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
