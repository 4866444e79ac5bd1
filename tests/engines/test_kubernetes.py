"""The manifests and the chart for Kubernetes, held against the schemas of what reads them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REASON = "not installed; `make test-engines` makes an environment"
kubernetes_validate = pytest.importorskip("kubernetes_validate", reason=f"kubernetes-validate is {REASON}")
models = pytest.importorskip("kubeflow_trainer_api.models", reason=f"kubeflow_trainer_api is {REASON}")
chart = pytest.importorskip("helm_python.chart", reason=f"helm-python-sdk is {REASON}")
errors = pytest.importorskip("helm_python.errors")

FOLDER = Path(__file__).parents[2] / "core/launch/kubernetes"
VERSION = kubernetes_validate.latest_version()

# kubeflow.org/v2beta1 as in pkg/apis/kubeflow/v2beta1/types.go of kubeflow/mpi-operator, revision caa3c47 (July 2026):
# no package of PyPI has it. Pod templates are held against Kubernetes' own schema.
_SPEC = {
    "slotsPerWorker", "runLauncherAsWorker", "runPolicy", "mpiReplicaSpecs", "sshAuthMountPath",
    "launcherCreationPolicy", "mpiImplementation",
}  # fmt: skip
_RUN_POLICY = {
    "cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit", "schedulingPolicy",
    "suspend", "managedBy",
}  # fmt: skip
_VALUES = {
    "launcherCreationPolicy": {"AtStartup", "WaitForWorkersReady"},
    "mpiImplementation": {"OpenMPI", "Intel", "MPICH"},
    "cleanPodPolicy": {"Running", "All", "None"},
    "restartPolicy": {"Never", "OnFailure", "Always", "ExitCode"},
}


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((FOLDER / name).read_text(encoding="utf-8")))


def containers(document: Any) -> Iterator[dict[str, Any]]:
    """Yield every container in a document."""
    if isinstance(document, dict):
        yield from document.get("containers", ())
        for value in document.values():
            yield from containers(value)
    elif isinstance(document, list):
        for value in document:
            yield from containers(value)


def check_values(part: dict[str, Any]) -> None:
    for name in part.keys() & _VALUES.keys():
        assert part[name] in _VALUES[name], (name, part[name])


def test_the_indexed_job_is_valid() -> None:
    service, job = documents("indexed-job.yaml")
    for one in (service, job):
        kubernetes_validate.validate(one, VERSION, strict=True)
    check_meeting(service, job)


def check_meeting(service: dict[str, Any], job: dict[str, Any]) -> None:
    """Check that the ranks find each other: the numbers agree, and the first pod has the name that all learn."""
    spec, name = job["spec"], job["metadata"]["name"]
    (container,) = containers(job)
    told = {one["name"]: one.get("value") for one in container["env"]}
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(told["RINGTUNE_SIZE"])
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert told["RINGTUNE_STORE"] == f"{name}-0.{service['metadata']['name']}:29400"
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": name}


@pytest.mark.parametrize("name", ["mpijob.yaml", "mpijob-elastic.yaml"])
def test_an_mpi_job_is_valid(name: str) -> None:
    (job,) = documents(name)
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    spec = job["spec"]
    assert spec.keys() <= _SPEC and spec["runPolicy"].keys() <= _RUN_POLICY
    assert spec["mpiReplicaSpecs"].keys() == {"Launcher", "Worker"} and spec["slotsPerWorker"] == 4
    check_values(spec)
    check_values(spec["runPolicy"])
    for replica in spec["mpiReplicaSpecs"].values():
        assert replica.keys() <= {"replicas", "template", "restartPolicy"}
        check_values(replica)
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **replica["template"]}
        kubernetes_validate.validate(pod, VERSION, strict=True)


def test_the_runtime_and_the_job_of_the_trainer_are_valid() -> None:
    runtime, job = documents("trainjob.yaml")
    for one in (runtime, job):
        model = getattr(models, f"TrainerV1alpha1{one['kind']}").from_dict(one)
        assert model.to_dict() == one, "the models drop what the API does not know"
    assert job["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"] == "ringtune-distributed"
    (group,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert group["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def rendered(**values: Any) -> list[dict[str, Any]]:
    """Return what the chart becomes."""
    with chart.Chart.load(FOLDER / "chart") as loaded:
        files = loaded.render(values=values, name="digits", namespace="ml")
    texts = [text for name, text in sorted(files.items()) if name.endswith(".yaml")]
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


@pytest.mark.parametrize(
    ("values", "kinds"),
    [
        ({}, "Deployment Job PersistentVolumeClaim Secret Service Service"),
        ({"dashboard": {"enabled": False}, "runs": {"existingClaim": "shared"}}, "Job Secret Service"),
        (
            {"ranks": 8, "backoffLimit": 0, "env": {"RINGTUNE_AUTOTUNE": "1"}, "runs": {"storageClassName": "fast"}},
            "Deployment Job PersistentVolumeClaim Secret Service Service",
        ),
    ],
)
def test_the_chart_becomes_valid_objects(values: dict[str, Any], kinds: str) -> None:
    found = rendered(**values)
    assert " ".join(sorted(one["kind"] for one in found)) == kinds
    for one in found:
        kubernetes_validate.validate(one, VERSION, strict=True)
    named = {(one["kind"], one["metadata"]["name"]): one for one in found}
    job = named["Job", "digits"]
    check_meeting(named["Service", "digits"], job)
    assert job["spec"]["completions"] == values.get("ranks", 4)
    assert job["spec"]["backoffLimit"] == values.get("backoffLimit", 4)
    (container,) = containers(job)
    assert {"name": "RINGTUNE_AUTOTUNE", "value": "1"} in container["env"] or "env" not in values
    claims = set(re.findall(r"'claimName': '([^']+)'", str(found)))
    assert claims == {values.get("runs", {}).get("existingClaim", "digits-runs")}


def test_the_chart_is_clean_and_refuses_a_job_without_ranks() -> None:
    said = [one["error"] for one in chart.lint(FOLDER / "chart")["messages"]]
    assert said == ["icon is recommended"]
    with pytest.raises(errors.HelmRenderError, match="a job has at least 1 rank"):
        rendered(ranks=0)


def test_every_command_is_one_of_ours() -> None:
    """Commands of ringtune in manifests, chart and compose file are understood by the command line."""
    from ringtune.dashboard.cli import dashboard
    from ringtune.launch.command import options_from, run

    commands = [one.get("command", [""]) for name in FOLDER.glob("*.yaml") for doc in documents(name.name)
                for one in [*containers(doc), *doc.get("services", {}).values()]]  # fmt: skip
    commands += [one["command"] for document in rendered() for one in containers(document)]
    ours = [words for words in commands if words[0] == "ringtune"]
    assert len(ours) == 5
    for _, name, *rest in ours:
        command = {"run": run, "dashboard": dashboard}[name]
        context = command.make_context(name, list(rest))
        if name == "run":
            values = dict(context.params)
            assert options_from(list(values.pop("command")), values).command == ["python", "train.py"]
