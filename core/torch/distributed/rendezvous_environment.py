"""What torch's own rendezvous asks the environment for, in a job of `ringtune run`."""

from __future__ import annotations

from collections.abc import MutableMapping

from ringtune.config import parse_address


def complete(environ: MutableMapping[str, str]) -> None:
    """Set what ``init_process_group`` reads, from what ``ringtune run`` says; what is set already stays.

    Args:
        environ: The environment; changed in place. Nothing happens without ``RINGTUNE_MASTER``.
    """
    if "RINGTUNE_MASTER" not in environ or "RINGTUNE_RANK" not in environ:
        return
    host, port = parse_address("RINGTUNE_MASTER", environ["RINGTUNE_MASTER"])
    for name, value in (
        ("RANK", environ["RINGTUNE_RANK"]),
        ("WORLD_SIZE", environ["RINGTUNE_SIZE"]),
        ("LOCAL_RANK", environ["RINGTUNE_LOCAL_RANK"]),
        ("LOCAL_WORLD_SIZE", environ["RINGTUNE_LOCAL_SIZE"]),
        ("MASTER_ADDR", host),
        ("MASTER_PORT", str(port)),
    ):
        environ.setdefault(name, value)
