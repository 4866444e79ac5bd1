"""Records a short training, predicts it on more ranks and prints where efficiency goes.

    python predict.py --run-dir runs/predict

The same in the shell: `ringtune run --timeline ...`, then `ringtune predict RUN -np 2,8,64 --bandwidth 25Gbit/s`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

RINGTUNE = [sys.executable, "-m", "ringtune.cli"]


def main() -> None:
    """Runs the training on two ranks and asks for larger jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-dir", type=Path, default=Path("runs/predict"))
    parser.add_argument("--ranks", default="2,8,64")
    parser.add_argument("--bandwidth", default="25Gbit/s")
    parser.add_argument("--steps", type=int, default=60)
    args = parser.parse_args()
    train = [sys.executable, str(Path(__file__).with_name("slow_rank.py")), "--steps", str(args.steps)]
    trace = ["--timeline", str(args.run_dir / "timeline.json")]
    subprocess.run([*RINGTUNE, "run", "-np", "2", "--run-dir", str(args.run_dir), *trace, *train], check=True)
    where = ["-np", args.ranks, "--bandwidth", args.bandwidth, "--latency", "10us"]
    raise SystemExit(subprocess.run([*RINGTUNE, "predict", str(args.run_dir), *where], check=False).returncode)


if __name__ == "__main__":
    main()
