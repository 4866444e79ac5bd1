"""Optuna Dashboard opens what sessions have stored: its own server, asked as its pages ask it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ringtune.knobs import Knobs
from ringtune.tuner.restarts.choices import Choice
from ringtune.tuner.restarts.memory import StudyMemory
from ringtune.tuner.space import Space
from ringtune.tuner.study import StudyAdvisor, StudyOptions, open_storage
from tests.conftest import needs
from tests.tuner.test_advisors import JOB, WORK, outcome, result, wait

FAST = Knobs(2 << 20, 300_000)
SOCKETS = "RINGTUNE_SOCKETS_PER_PEER"


def shown(place: str) -> dict[str, Any]:
    """The storage's only study as the dashboard shows it."""
    server, client = needs("optuna_dashboard"), needs("werkzeug.test").Client
    page = client(server.wsgi(open_storage(place)))
    assert page.get("/dashboard").status_code == 200
    (summary,) = page.get("/api/studies").get_json()["study_summaries"]
    answer = page.get(f"/api/studies/{summary['study_id']}", query_string={"after": 0})
    assert answer.status_code == 200
    return {**summary, **answer.get_json()}


@pytest.mark.parametrize("file", ["studies.db", "studies.log"])
def test_a_session_is_shown_with_its_trials_and_its_result(tmp_path: Path, file: str) -> None:
    place = str(tmp_path / file)
    advisor = StudyAdvisor(Space(), JOB, StudyOptions(place))
    advisor.open(WORK)
    suggestion = wait(advisor.ask)
    advisor.tell(outcome(suggestion.knobs, 0.9, suggestion.token, "sampler"))
    advisor.tell(outcome(FAST, 0.8))
    advisor.conclude(result("improved", FAST))
    advisor.close()
    study = shown(place)
    assert study["study_name"] == f"ringtune-{JOB.fingerprint(WORK)}"
    assert [trial["state"] for trial in study["trials"]] == ["Complete", "Complete"]
    assert [trial["values"] for trial in study["trials"]] == [[0.9], [0.8]]
    assert {param["name"] for param in study["trials"][1]["params"]} == {"fusion_bytes", "cycle_time_ns"}
    assert {"key": "source", "value": "start-point"} in study["trials"][1]["user_attrs"]
    assert "ringtune:confirmed" in {attribute["key"] for attribute in study["user_attrs"]}


def test_restarts_are_shown_with_their_variables(tmp_path: Path) -> None:
    place, said = str(tmp_path / "studies.db"), []  # type: ignore[var-annotated]
    memory = StudyMemory(JOB, [Choice(SOCKETS, ("2", "4"))], [place], said.append)
    memory.open(WORK)
    memory.tell(((SOCKETS, "4"),), 0.8)
    memory.tell(((SOCKETS, "2"),), None)
    study = shown(place)
    assert study["study_name"] == f"ringtune-restarts-{JOB.fingerprint(WORK)}" and not said
    assert [(trial["state"], trial["params"][0]["param_external_value"]) for trial in study["trials"]] == [
        ("Complete", "4"),
        ("Pruned", "2"),
    ]
