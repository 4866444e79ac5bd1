"""Stages the pages of `make docs` in build/docs-source: READMEs and guides, what they link to, and the API reference.

The tree keeps its shape, so that links between READMEs, pictures and sources are the same here and in the repository.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
STAGE = ROOT / "build" / "docs-source"
GUIDE = "core/guide"
GUIDES = (
    "quickstart", "horovod", "ddp", "ddp-walk", "walk", "tuning", "elastic", "hosts", "dashboard", "troubleshooting",
    "choosing", "slurm", "lsf", "kubernetes", "kubeflow", "sagemaker", "databricks", "synapse", "ray-vms",
    "faq", "jax", "mxnet", "tensorflow", "torch-libraries", "spark", "ray", "dask",
)  # fmt: skip
LAYERS = ("core", "timeline", "tuner", "dashboard", "native", "benchmarks", "tests")
MORE = (
    "core/launch/README", "core/launch/SECURITY", "core/launch/kubernetes/README", "native/DESIGN",
    "benchmarks/examples/README",
)  # fmt: skip
# Module: names that another module's page describes.
MODULES = {
    "ringtune": "RingtuneError, range, run",
    # Classes that autograd calls, which Horovod shows too.
    "ringtune.torch": ", ".join(
        f"Horovod{name}"
        for kind in ("Allreduce", "Allgather", "Broadcast", "Alltoall", "Reducescatter")
        for name in (kind, f"Grouped{kind}")
    ),
    "ringtune.torch.distributed": "",
    "ringtune.torch.elastic": "",
    "ringtune.numpy": "ProcessSet",
    "ringtune.launch": "",
    "ringtune.timeline": "",
    "ringtune.errors": "",
}
_LINK = re.compile(r"\]\(([^)#\s:]+)(?:#[^)\s]*)?\)")
# The marks behind `sh` are for the tests, and no highlighter knows Mermaid.
_MARKS = re.compile(r"^```sh .*$", re.MULTILINE)


def pages() -> list[Path]:
    """Returns the Markdown files under version control, and new ones that are not ignored."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [ROOT / name for name in listed.splitlines() if (ROOT / name).is_file() and name != "CHANGELOG.md"]


def stage(page: Path) -> None:
    """Copies a page and the files that it links to."""
    text = _MARKS.sub("```sh", page.read_text(encoding="utf-8")).replace("```mermaid", "```text")
    for name in _LINK.findall(text):
        target = (page.parent / name).resolve()
        if target.is_file() and target.suffix != ".md":
            copy = STAGE / target.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, copy)
    write(str(page.relative_to(ROOT)), text)


def write(name: str, text: str) -> None:
    """Writes a staged page."""
    path = STAGE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def toctree(caption: str, names: list[str]) -> str:
    """Returns a part of the table of contents."""
    return "\n".join(["```{toctree}", ":maxdepth: 1", f":caption: {caption}", "", *names, "```", ""])


def reference(module: str, elsewhere: str) -> str:
    """Returns the page of a module, made from its docstrings."""
    options = [":members:", ":imported-members:", *([f":exclude-members: {elsewhere}"] if elsewhere else [])]
    directive = "\n".join([f".. automodule:: {module}", *(f"   {option}" for option in options)])
    return f"# {module}\n\n```{{eval-rst}}\n{directive}\n```\n"


def main() -> None:
    """Makes the folder anew."""
    shutil.rmtree(STAGE, ignore_errors=True)
    for page in pages():
        stage(page)
    for module, elsewhere in MODULES.items():
        write(f"api/{module}.md", reference(module, elsewhere))
    root = (STAGE / "README.md").read_text(encoding="utf-8")
    (STAGE / "README.md").unlink()
    contents = [
        toctree("Guides", [f"{GUIDE}/README", *(f"{GUIDE}/{name}" for name in GUIDES)]),
        toctree("Reference", [f"api/{module}" for module in MODULES]),
        toctree("Layers", [*(f"{name}/README" for name in LAYERS), *MORE]),
    ]
    write("index.md", "\n".join([root, *contents]))


if __name__ == "__main__":
    main()
