"""The Dockerfile and the compose file, as far as they can be looked at without Docker."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "core/launch/kubernetes"


def test_stages_and_sources_of_the_image_exist() -> None:
    text = (FOLDER / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ")
    stages = re.findall(r"^FROM (\S+) AS (\S+)$", text, re.MULTILINE)
    names = [name for _, name in stages]
    assert {"cpu", "cuda"} <= set(names)
    for number, (base, _) in enumerate(stages):
        assert ":" in base or base in names[:number], base
    assert set(re.findall(r"--from=(\S+)", text)) <= set(names)
    assert set(re.findall(r"--target (\S+)", text)) == {"cpu", "cuda"}
    for path in re.findall(r"-f (\S+)", text):
        assert (ROOT / path).is_file(), path
    # The wheel is found by its name, and its extras exist.
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert 'name = "ringtune"' in project
    extras = {name for listed in re.findall(r"ringtune-\*\.whl\)\[([^]]+)\]", text) for name in listed.split(",")}
    assert "dashboard" in extras and extras <= set(re.findall(r"^([a-z0-9-]+) = \[", project, re.MULTILINE))


def test_the_compose_file_joins_job_and_dashboard() -> None:
    file = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
    train, dashboard = file["services"]["train"], file["services"]["dashboard"]
    assert "runs:/runs" in train["volumes"] and "runs:/runs" in dashboard["volumes"] and "runs" in file["volumes"]
    assert train["command"][train["command"].index("--run-dir") + 1].startswith(dashboard["command"][2])
    # Beyond this machine nobody reaches the dashboard, and it has a token all the same.
    assert dashboard["ports"] == ["127.0.0.1:8050:8050"] and "--token" in dashboard["command"]
