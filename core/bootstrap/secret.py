"""The secret of a job: what its processes know and nobody else does.

With it they prove to each other, on every connection, that they belong together (``native/transport/handshake.h``);
nothing that a stranger sends is believed, or even unpickled. Where it comes from depends on who started the ranks:

* `ringtune run` makes one for each job and hands it down through standard input and the environment, never in a
  command line.
* ``RINGTUNE_SECRET`` or ``RINGTUNE_SECRET_FILE``: given.
* Else it is derived from a key of the user, which is made at first use and which only the user can read: on one host
  it lies in the user's folder of the temporary directory, for several hosts in the home folder, which they share on
  most clusters. Ranks whose keys differ refuse each other and say what to set.
* Under torchrun on several hosts it travels through torch's own store, which is said, and under MPI through mpi4py.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from ringtune.bootstrap.address_file import private_folder
from ringtune.bootstrap.interfaces import LOCAL, is_loopback
from ringtune.bootstrap.placement import Placement
from ringtune.config import FEWEST_SECRET_CHARACTERS, Config
from ringtune.errors import ConfigError

_KEY = "key"
_HOME = ".ringtune"
_OF_THIS_HOST = "derived"
_IN_TORCHS_STORE = (
    "ringtune warning: [rank 0] the job's secret travels through torch's store, where everybody can read it who "
    "reaches MASTER_PORT; where others can, set RINGTUNE_SECRET_FILE or RINGTUNE_SECRET on all ranks"
)


def given(config: Config) -> str | None:
    """Return the secret that the environment holds or names, None if there is none.

    Raises:
        ConfigError: The file cannot be read, others can read it, or it holds too little.
    """
    if config.secret is not None:
        return config.secret
    return None if config.secret_file is None else _from_file(config.secret_file)


def of_job(config: Config, placement: Placement) -> str:
    """Return the secret of a job: what is given, else one that is derived from the user's key.

    Raises:
        ConfigError: The file that is named cannot be used.
        RingtuneError: No key can be kept where others cannot read it.
    """
    found = given(config)
    return found if found is not None else derived(placement.job or "job", one_host=_on_one_host(placement))


def derived(job: str, *, one_host: bool) -> str:
    """Return a secret made of the user's key and a job's name.

    Args:
        job: Name of the job, the same on all its ranks.
        one_host: Whether all of them are on this host.

    Raises:
        RingtuneError: No key can be kept where others cannot read it.
    """
    key = _key_in(private_folder()) if one_host else _key_for_all_hosts()
    return hmac.new(key, f"ringtune job {job}".encode(), hashlib.sha256).hexdigest()


def through_torch(store: Any, key: str, config: Config, rank: int, *, one_host: bool, on_loopback: bool = False) -> str:
    """Return the secret of a job whose ranks meet in torch's store.

    On several hosts rank 0 leaves it there and says so: whoever can reach torch's store can read it then, and could as
    well become a rank of torch.distributed. Where that is too little, set ``RINGTUNE_SECRET``.

    Args:
        store: torch's store.
        key: Name in the store.
        config: Settings of this process.
        rank: This process's rank.
        one_host: Whether all ranks are known to be on this host.
        on_loopback: Whether rank 0 knows that they must be, since only this host reaches its store. Others of the job
            may not know, so it leaves word of it, and no secret.
    """
    found = given(config)
    if found is not None:
        return found
    if not one_host and rank == 0:
        store.set(key, _OF_THIS_HOST if on_loopback else secrets.token_hex(32))
        if not on_loopback:
            print(_IN_TORCHS_STORE, file=sys.stderr, flush=True)
    made = _OF_THIS_HOST if one_host else str(store.get(key).decode())
    return derived(config.job or "torch", one_host=True) if made == _OF_THIS_HOST else made


def _on_one_host(placement: Placement) -> bool:
    if placement.several_hosts:
        return False
    host = placement.store[0] if placement.store is not None else "localhost"
    return host == LOCAL or is_loopback(host)


def _from_file(path: Path) -> str:
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it holds no text"
        raise ConfigError(f"RINGTUNE_SECRET_FILE={str(path)!r}: cannot be read: {reason}") from None
    if stat.S_ISREG(mode) and mode & 0o077:
        raise ConfigError(f"RINGTUNE_SECRET_FILE={str(path)!r}: others may read it: chmod 600 {path}")
    if len(text) < FEWEST_SECRET_CHARACTERS:
        least = f"expected at least {FEWEST_SECRET_CHARACTERS} characters"
        raise ConfigError(f"RINGTUNE_SECRET_FILE={str(path)!r}: {least}")
    return text


def _key_for_all_hosts() -> bytes:
    # A home folder that cannot be written, or is another user's (sudo), leaves the key of this host alone.
    with suppress(OSError, RuntimeError, PermissionError):
        folder = Path.home() / _HOME
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.stat()
        if found.st_uid == os.getuid() and not found.st_mode & 0o022:
            return _key_in(folder)
    return _key_in(private_folder())


def _key_in(folder: Path) -> bytes:
    """Return the user's key of a folder, made if there is none; of several processes that make one, one wins."""
    path = folder / _KEY
    if not path.exists():
        part = folder / f".{_KEY}.{secrets.token_hex(8)}"
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            file.write(secrets.token_hex(32).encode())
        try:
            os.link(part, path)
        except FileExistsError:
            pass
        finally:
            part.unlink()
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise ConfigError(f"{path}: must be a file of this user with mode 0600; remove it or set RINGTUNE_SECRET")
    return path.read_bytes()
