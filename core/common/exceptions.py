"""Horovod's exceptions, where scripts look for them (``horovod.common.exceptions``)."""

from __future__ import annotations

from ringtune.errors import HorovodInternalError

__all__ = [
    "HorovodInternalError",
    "HorovodVersionMismatchError",
    "HostsUpdatedInterrupt",
    "get_version_mismatch_message",
]


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts has changed; training should stop at its next commit.

    Args:
        skip_sync: Whether the state needs no synchronisation afterwards.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync


def get_version_mismatch_message(name: str, version: str | None, installed_version: str) -> str:
    """Return the words for a framework whose version is not the one ringtune was built for."""
    return (
        f"Framework {name} installed with version {installed_version} but found version {version}.\n"
        "This can result in unexpected behavior including runtime errors.\n"
        "Reinstall Horovod using `pip install --no-cache-dir` to build with the new version."
    )


class HorovodVersionMismatchError(ImportError):
    """A framework has another version than expected. ringtune never raises it: it is built against no framework.

    Args:
        name: Name of the framework.
        version: Its version.
        installed_version: The version expected.
    """

    def __init__(self, name: str, version: str | None, installed_version: str) -> None:
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version
