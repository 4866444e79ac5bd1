"""TLS between the processes of a job, where the user gives certificates."""

from __future__ import annotations

from collections.abc import Mapping

from ringtune.errors import ConfigError

_NAMES = ("TLS_CERT", "TLS_KEY", "TLS_CA")


def files_of(environ: Mapping[str, str]) -> tuple[str, str, str] | None:
    """Return the paths of certificate, key and authority; None where no TLS is asked for.

    Raises:
        ConfigError: Some of the three are missing.
    """
    if not any(environ.get(f"RINGTUNE_{name}") for name in _NAMES):
        return None
    from ringtune.config import Config  # which needs the native runtime for nothing, but is imported behind it

    config = Config.from_environ(environ)
    given = dict(zip(_NAMES, (config.tls_cert, config.tls_key, config.tls_ca), strict=True))
    missing = [f"RINGTUNE_{name}" for name, path in given.items() if path is None]
    if missing:
        raise ConfigError(f"TLS needs RINGTUNE_TLS_CERT, RINGTUNE_TLS_KEY and RINGTUNE_TLS_CA; not set: {missing[0]}")
    certificate, key, authority = map(str, given.values())
    return certificate, key, authority
