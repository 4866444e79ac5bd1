"""Prints what an extra of ringtune requires, own extras resolved: `python .ci/requirements.py dev`.

pip would install them with ringtune itself; the editable build needs its build requirements first, without isolation.
"""

from __future__ import annotations

import sys
from pathlib import Path

from packaging.requirements import Requirement

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def requirements_of(project: dict, extra: str) -> set[str]:
    """All requirement strings of `extra`, following references to the project's own extras."""
    found: set[str] = set()
    for line in project["optional-dependencies"][extra]:
        requirement = Requirement(line)
        if requirement.name == project["name"]:
            for inner in requirement.extras:
                found |= requirements_of(project, inner)
        else:
            found.add(line)
    return found


def main() -> None:
    """Prints the base and the named extras' requirements, one a line."""
    document = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    project = document["project"]
    lines = set(project["dependencies"]) | set(document["build-system"]["requires"])
    for extra in sys.argv[1:]:
        lines |= requirements_of(project, extra)
    print("\n".join(sorted(lines)))


if __name__ == "__main__":
    main()
