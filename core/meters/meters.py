"""What a session measures of itself: one line a step, a sample of process and machine a second, metrics on request.

And where its rank stands in Python once it does not get on.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ringtune.errors import ConfigError, RingtuneError
from ringtune.meters.step_log import StepLog
from ringtune.stats import StepStats

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ringtune.meters.alerts import Alerts
    from ringtune.meters.durations import Durations
    from ringtune.meters.exporter import Exporter
    from ringtune.meters.exposure import Blocked
    from ringtune.meters.sampler import Sampler
    from ringtune.meters.stack_log import StackLog
    from ringtune.meters.state import RankState
    from ringtune.session import Session

_METRICS_PERIOD_NS = 1_000_000_000
"""Period of the samples for the metrics when those for the run folder are switched off."""


class Meters:
    """The meters of one session. Opened, stepped and closed on the thread that trains.

    Args:
        session: The session, borrowed.
    """

    def __init__(self, session: Session) -> None:
        self._session = session
        self._step_log: StepLog | None = None
        self._sampler: Sampler | None = None
        self._durations: Durations | None = None
        self._blocked: Blocked | None = None
        self._exporter: Exporter | None = None
        self._stacks: StackLog | None = None

    def begin(self) -> None:
        """Start to export metrics, and to look for what is wrong, if the settings ask for it.

        Raises:
            ConfigError: The port is in use, or the webhook is no URL.
            RingtuneError: prometheus_client is missing.
        """
        config, session = self._session.config, self._session
        alerted = bool(config.alert_late_ppm or config.alert_slower_ppm or config.alert_webhook)
        if config.metrics_port is None and not alerted:
            return
        from ringtune.meters.durations import Durations
        from ringtune.meters.exposure import Blocked
        from ringtune.meters.publisher import Publisher

        self._durations, self._blocked = Durations(), Blocked()
        publisher = Publisher(session, self._durations, self._blocked, self._warn)
        if session.rank == 0 and config.metrics_port is not None:
            from ringtune.meters.exporter import Exporter

            self._exporter = Exporter(config.metrics_host, config.metrics_port, publisher.all_ranks)
            print(f"ringtune: metrics for Prometheus at {self._exporter.url}", file=sys.stderr, flush=True)
        self._sampling().add(publisher)
        if alerted and session.rank == 0:
            publisher.alerts = self._alerts(publisher.all_ranks)
            self._sampling().add(publisher.alerts)

    def _alerts(self, states: Callable[[], Sequence[RankState]]) -> Alerts:
        """Return the alerts that the settings ask for; steps are held against the last run of the same name."""
        from ringtune.meters.alerts import Alerts, Conditions, Limits, earlier_run

        config, run = self._session.config, self._session.run_folder
        url = config.alert_webhook
        if url and not url.startswith(("http://", "https://")):
            raise ConfigError(f"RINGTUNE_ALERT_WEBHOOK={url!r}: expected a URL that begins with http:// or https://")
        baseline = earlier_run(run) if run is not None and config.alert_slower_ppm else None
        if config.alert_slower_ppm and baseline is None:
            why = "there is no run folder" if run is None else "no finished run of this name and size lies beside it"
            self._warn(f"RINGTUNE_ALERT_SLOWER_PERCENT has nothing to compare with: {why}")
        limits = Limits(config.alert_late_ppm / 1e6, config.alert_slower_ppm / 1e6)
        name = run.name if run is not None else self._session.job
        return Alerts(Conditions(limits, baseline), states, url, name, self._warn)

    def write_into(self, run: Path) -> None:
        """Write steps and samples into a run folder from now on.

        Raises:
            RingtuneError: It cannot be written.
        """
        self._step_log = StepLog(run, self._session.tracks.own)
        if self._session.config.sample_ns:
            from ringtune.meters.sample_log import SampleLog

            self._sampling().add(SampleLog(run, self._session.tracks.own))
        self._log_stacks(run)

    def _log_stacks(self, run: Path) -> None:
        """Write where this rank stands when it does not get on, or is ended; training goes on where that fails."""
        from ringtune.meters.stack_log import StackLog

        config, traffic = self._session.config, self._session.traffic
        try:
            self._stacks = StackLog(run, self._session.tracks.own, config.stall_warning_ns, traffic)
        except RingtuneError as error:
            self._warn(f"where this rank stands is not noted: {error}")
            return
        if config.sample_ns and not config.stall_check_disable:
            from ringtune.meters.stalls import Stall, StallLog

            session, tracks = self._session, self._session.tracks
            reported = partial(Stall.reported, session)
            self._sampling().add(self._stacks)
            self._sampling().add(StallLog(run, tracks.own, reported, traffic, tracks.of_ranks))

    def step_ended(self, stats: StepStats) -> None:
        """Count and log a step; an error of the disk must not end training."""
        if self._durations is not None and self._blocked is not None:
            self._durations.add(stats.wall_ns)
            self._blocked.add(stats.step, min(stats.wait_ns, stats.wall_ns))
        if self._step_log is None:
            return
        try:
            self._step_log.append(stats)
        except RingtuneError as error:
            self._warn(f"the step log ends here: {error}")
            self._step_log.close()
            self._step_log = None

    def close(self) -> None:
        """Write the last sample, close the files and end the server; idempotent."""
        if self._exporter is not None:
            self._exporter.close()
        if self._sampler is not None:
            self._sampler.stop()
        if self._stacks is not None:
            self._stacks.end()
        if self._step_log is not None:
            self._step_log.close()

    def _sampling(self) -> Sampler:
        if self._sampler is None:
            from ringtune.meters.sampler import Sampler

            session = self._session
            period_ns = session.config.sample_ns or _METRICS_PERIOD_NS
            self._sampler = Sampler(period_ns, gpus=session.local_rank == 0, report=self._warn)
        return self._sampler

    def _warn(self, sentence: str) -> None:
        print(f"ringtune warning: [rank {self._session.rank}] {sentence}", file=sys.stderr, flush=True)
