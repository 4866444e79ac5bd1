from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("torch", "numpy", "ringtune._native")


@pytest.mark.parametrize(
    "module",
    ["ringtune", "ringtune.errors", "ringtune.layout", "ringtune.knobs", "ringtune.stats", "ringtune.config",
     "ringtune.bootstrap.placement", "ringtune.bootstrap.rendezvous", "ringtune.session", "ringtune.runfolder"],
)  # fmt: skip
def test_import_is_light(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_resolve_lazily() -> None:
    code = (
        "import ringtune, sys\n"
        "assert 'ringtune.session' not in sys.modules\n"
        "for name in ringtune.__all__: getattr(ringtune, name)\n"
        "assert set(ringtune.__all__) <= set(dir(ringtune))\n"
        "assert 'torch' not in sys.modules and 'ringtune._native' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], timeout=280, check=True)


def test_an_unknown_name_is_an_attribute_error() -> None:
    import ringtune

    with pytest.raises(AttributeError, match="no attribute 'rnk'"):
        _ = ringtune.rnk
