"""What pages show of runs beside timelines: steps, machines, usage, tuning and scaling records."""

from __future__ import annotations

from dataclasses import dataclass, field

from ringtune import layout
from ringtune.dashboard.data import machine, scaling, tuning
from ringtune.dashboard.data.cache import Cache
from ringtune.dashboard.data.files import listing, signature
from ringtune.dashboard.data.machine import MachineTable
from ringtune.dashboard.data.posterior import Learned, learned
from ringtune.dashboard.data.run_figures import FiguresReader
from ringtune.dashboard.data.runs import RunInfo, newest_walls
from ringtune.dashboard.data.scaling import ScalingTable
from ringtune.dashboard.data.steps import StepReader, Steps
from ringtune.dashboard.data.system import SampleReader, System
from ringtune.dashboard.data.tuning import TuningHistory
from ringtune.dashboard.stores.live import LiveStore


@dataclass
class RunStore:
    """Reads logs and records of runs for pages and caches what it read. Safe to use from several threads.

    Attributes:
        live: Spaces out what is expensive to compute of a running job.
        figures: What the table of runs says of each.
    """

    live: LiveStore
    figures: FiguresReader = field(default_factory=FiguresReader)
    _steps: Cache = field(default_factory=lambda: Cache(capacity=8))
    _samples: Cache = field(default_factory=lambda: Cache(capacity=8))
    _small: Cache = field(default_factory=lambda: Cache(capacity=256))

    def steps(self, run: RunInfo) -> Steps:
        """Return the steps of a run written so far; only new lines are read."""
        reader = self._steps.get(run.path, None, lambda: StepReader(run.path))
        return reader.read()

    def machines(self, run: RunInfo) -> MachineTable:
        """Return the machines of a run's ranks."""
        files = listing(run.path, run.path / layout.MACHINE_FOLDER, ".json")
        return self._small.get(("machines", run.path), signature(files), lambda: machine.data(run))

    def system(self, run: RunInfo, *, thinned: bool = True) -> System:
        """Return what ranks and machines of a run used so far; only new samples are read."""
        reader = self._samples.get(run.path, None, lambda: SampleReader(run.path))
        return reader.read(run.hosts) if thinned else reader.read_all(run.hosts)

    def tuning(self, run: RunInfo) -> TuningHistory:
        """Return the tuning history of a run."""
        stamp = signature([layout.tuning_journal(run.path)])
        return self._small.get(("tuning", run.path), stamp, lambda: tuning.data(run))

    def learned(self, run: RunInfo) -> Learned:
        """Return the surface over untried settings that a run's trials suggest; throttled for a running job."""
        if run.status == "live":
            return self.live.throttled(("learned", run.path), lambda: learned(self.tuning(run)))
        stamp = signature([layout.tuning_journal(run.path)])
        return self._small.get(("learned", run.path), stamp, lambda: learned(self.tuning(run)))

    def scaling(self, runs: list[RunInfo]) -> ScalingTable:
        """Return the scaling records of runs."""
        files = [path for run in runs for path in listing(run.path, layout.scaling_folder(run.path), ".json")]
        key = ("scaling", tuple(run.path for run in runs))
        return self._small.get(key, signature(files), lambda: scaling.data(runs))

    def walls(self, run: RunInfo) -> list[int]:
        """Return the newest step times of rank 0 in nanoseconds, at least 1 each."""
        log = layout.step_log(run.path, 0)
        found = self._small.get(("walls", run.path), signature([log]), lambda: newest_walls(run.path, log)[1])
        return [wall for wall in found if wall > 0]
