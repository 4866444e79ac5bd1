"""Where the secret of a job comes from, and what is refused."""

from __future__ import annotations

import json
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ringtune import runfolder
from ringtune.bootstrap import placement, secret
from ringtune.config import FEWEST_SECRET_CHARACTERS, Config
from ringtune.errors import ConfigError, RingtuneError
from ringtune.runfolder import RunRecord
from ringtune.variable import without_password

GIVEN = "a secret of many characters"


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))


def of_job(**environ: Any) -> str:
    variables = {name: str(value) for name, value in environ.items()}
    config = Config.from_environ(variables)
    return secret.of_job(config, placement.detect(config, variables))


def test_what_is_given_wins(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("the words of a file\n")
    file.chmod(0o600)
    assert of_job(RINGTUNE_SECRET=GIVEN, RINGTUNE_SECRET_FILE=file) == GIVEN
    assert of_job(RINGTUNE_SECRET_FILE=file) == "the words of a file"


@pytest.mark.parametrize(
    ("content", "mode", "said"),
    [(GIVEN, 0o640, "chmod 600"), (GIVEN, 0o604, "chmod 600"), ("short", 0o600, "16 characters"), (None, 0, "No such")],
)
def test_files_that_cannot_hold_a_secret(tmp_path: Path, content: str | None, mode: int, said: str) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    with pytest.raises(ConfigError, match=said) as error:
        of_job(RINGTUNE_SECRET_FILE=file)
    assert GIVEN not in str(error.value)


def test_a_short_secret_is_refused_without_being_shown() -> None:
    with pytest.raises(ConfigError, match="RINGTUNE_SECRET: expected at least 16 characters, it has 7") as error:
        Config.from_environ({"RINGTUNE_SECRET": "swordfi"})
    assert "swordfi" not in str(error.value)


@pytest.mark.parametrize(
    ("where", "environ"),
    [
        ("tmp", {"RINGTUNE_STORE": "127.0.0.1:2000"}),
        ("tmp", {"RINGTUNE_STORE": "localhost:2000"}),
        ("tmp", {"MASTER_ADDR": "::1", "MASTER_PORT": 2000}),
        ("home", {"RINGTUNE_STORE": "10.0.0.1:2000"}),
        ("home", {"RINGTUNE_STORE": "node1:2000"}),
        ("home", {"RINGTUNE_LOCAL_SIZE": 1, "RINGTUNE_LOCAL_RANK": 0, "RINGTUNE_STORE": "127.0.0.1:2000"}),
    ],
)
def test_the_key_lies_where_all_ranks_can_read_it(tmp_path: Path, where: str, environ: dict[str, Any]) -> None:
    made = of_job(RINGTUNE_RANK=0, RINGTUNE_SIZE=2, **environ)
    assert made == of_job(RINGTUNE_RANK=0, RINGTUNE_SIZE=2, **environ)
    folder = tmp_path / "home" / ".ringtune" if where == "home" else tmp_path / "tmp" / f"ringtune-{os.getuid()}"
    assert [file.name for file in folder.iterdir()] == ["key"]
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "key").stat().st_mode) == 0o600
    assert (folder / "key").read_text() not in made


def test_jobs_have_secrets_of_their_own() -> None:
    jobs = [of_job(RINGTUNE_RANK=0, RINGTUNE_SIZE=2, RINGTUNE_STORE="localhost:2", RINGTUNE_JOB=job) for job in "ab"]
    assert len({*jobs}) == 2


def test_ranks_that_start_at_once_make_one_key() -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda _: secret.derived("job", one_host=True), range(32)))
    assert len({*made}) == 1


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    secret.derived("job", one_host=True)
    (tmp_path / "tmp" / f"ringtune-{os.getuid()}" / "key").chmod(0o644)
    with pytest.raises(ConfigError, match="mode 0600"):
        secret.derived("job", one_host=True)


def test_a_key_that_somebody_else_planted_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "tmp" / f"ringtune-{os.getuid()}"
    folder.mkdir(mode=0o700)
    planted = tmp_path / "planted"
    planted.write_text("known to others")
    planted.chmod(0o600)
    (folder / "key").symlink_to(planted)
    with pytest.raises(ConfigError, match="must be a file of this user"):
        secret.derived("job", one_host=True)


def test_a_folder_that_others_may_enter_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tmp" / f"ringtune-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(RingtuneError, match="mode 0700"):
        secret.derived("job", one_host=True)


def test_a_home_that_is_not_ones_own_leaves_the_hosts_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/proc/nowhere")
    secret.derived("job", one_host=False)
    assert (tmp_path / "tmp" / f"ringtune-{os.getuid()}" / "key").exists()


class Store(dict[str, bytes]):
    """As torch's store."""

    def set(self, key: str, value: str) -> None:
        self[key] = value.encode()


def test_through_torch() -> None:
    store, config = Store(), Config()
    at_zero = secret.through_torch(store, "key", config, 0, one_host=False)
    assert secret.through_torch(store, "key", config, 1, one_host=False) == at_zero
    assert len(at_zero) == 64
    given = Config(secret=GIVEN)
    assert secret.through_torch(Store(), "key", given, 1, one_host=False) == GIVEN
    silent = Store()
    here = [secret.through_torch(silent, "key", config, rank, one_host=True) for rank in (0, 1)]
    assert here[0] == here[1]
    assert not silent, "on one host nothing is left where others can read it"


def test_a_secret_in_torchs_store_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    store = Store()
    for rank in (0, 1):
        secret.through_torch(store, "key", Config(), rank, one_host=False)
    (line,) = capsys.readouterr().err.splitlines()
    assert "travels through torch's store" in line and "set RINGTUNE_SECRET_FILE or RINGTUNE_SECRET" in line
    secret.through_torch(Store(), "key", Config(secret=GIVEN), 0, one_host=False)
    secret.through_torch(Store(), "key", Config(), 0, one_host=True)
    assert capsys.readouterr().err == ""


def test_what_lies_in_torchs_store_of_a_local_job_gives_nobody_its_secret(capsys: pytest.CaptureFixture[str]) -> None:
    """Ranks of ``torch.multiprocessing.spawn``: torch's store listens on all interfaces, whatever MASTER_ADDR is."""
    store = Store()
    ranks = [secret.through_torch(store, "key", Config(), 0, one_host=False, on_loopback=True)]
    ranks.append(secret.through_torch(store, "key", Config(), 1, one_host=False, on_loopback=False))
    assert ranks == [secret.derived("torch", one_host=True)] * 2
    assert not [value for value in store.values() if len(value) >= FEWEST_SECRET_CHARACTERS]
    assert capsys.readouterr().err == ""


def test_a_derived_secret_follows_from_nothing_that_others_can_read(tmp_path: Path) -> None:
    """The same job of another user, and of this one once more with another key, has another secret."""
    seen = []
    for _ in range(2):
        seen += [secret.derived("job", one_host=True), secret.derived("job", one_host=False)]
        (tmp_path / "tmp" / f"ringtune-{os.getuid()}" / "key").unlink()
        (Path.home() / ".ringtune" / "key").unlink()
    assert len({*seen}) == 4


def test_no_secret_stands_in_a_run_folder(tmp_path: Path) -> None:
    environ = {
        "RINGTUNE_SECRET": GIVEN,
        "RINGTUNE_STORE": "node1:4711",
        "RINGTUNE_JOB": "the-job",
        "RINGTUNE_AUTOTUNE_STUDY": "postgresql://ann:swordfish@db/study",
        "RINGTUNE_CYCLE_TIME": "2",
    }
    config = Config.from_environ(environ)
    run = tmp_path / "run"
    command = ["python", "train.py", "--db", "mysql://bob:opensesame@db:3306/x"]
    runfolder.create(run, RunRecord("run", command=command, config=config.as_dict()))
    text = runfolder.layout.run_file(run).read_text()
    for private in (GIVEN, "4711", "the-job", "swordfish", "opensesame"):
        assert private not in text, private
    assert json.loads(text)["config"]["RINGTUNE_CYCLE_TIME"] is not None
    assert "ann:***@db/study" in text
    assert GIVEN not in repr(config)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://ann:secret@db/study", "postgresql://ann:***@db/study"),
        ("redis://:secret@db", "redis://:***@db"),
        ("sqlite:////tmp/a:b@c.db", "sqlite:////tmp/a:b@c.db"),
        ("https://host:8080/a", "https://host:8080/a"),
        ("https://host:8080/a@b", "https://host:***@b"),
        ("postgresql://ann:a/b@c:d@db/study", "postgresql://ann:***@db/study"),
        ("x://db/y?password=a/b&sslpassword=c&user=d", "x://db/y?password=***&sslpassword=***&user=d"),
        ("x --study=mysql://a:b@c/d y", "x --study=mysql://a:***@c/d y"),
        (3, 3),
    ],
)
def test_passwords_are_not_shown(text: object, shown: object) -> None:
    assert without_password(text) == shown


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_a_run_folder_is_its_users_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        runfolder.create(tmp_path / "runs" / "run", RunRecord("run"))
        runfolder.write_machine(tmp_path / "runs" / "run", 0, "host")
    finally:
        os.umask(before)
    folders = [path for path in (tmp_path / "runs", *(tmp_path / "runs").rglob("*")) if path.is_dir()]
    files = [path for path in (tmp_path / "runs").rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) for path in folders} == {0o700}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
