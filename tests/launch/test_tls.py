"""TLS for the store and control messages: who is let in, who is told why not, and what a listener on the way reads."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.conftest import missing, needs

SECURITY = Path(__file__).parents[2] / "core" / "launch" / "SECURITY.md"
SECRET = "0123456789abcdef"
WORDS = b"the words of a rank"
SERVER = f"""
import sys
from ringtune import native
server = native.load().StoreServer("127.0.0.1", 0, "{SECRET}")
print(server.port, flush=True)
sys.stdin.read()
"""
CLIENT = f"""
import sys
from ringtune import native
from ringtune.errors import RingtuneError
try:
    with native.translated():
        client = native.load().StoreClient("127.0.0.1", int(sys.argv[1]), "{SECRET}", 20_000_000_000)
        client.set("key", {WORDS!r})
        client.set("large", bytes(3_000_000))
        assert client.get("key", 10**10) == {WORDS!r} and len(client.get("large", 10**10)) == 3_000_000
        print("served at", client.local_address())
except RingtuneError as error:
    print(type(error).__name__, error)
"""


def make_files(folder: Path) -> dict[str, str]:
    """Make an authority and a certificate of a job by the commands of the documentation; return the variables."""
    if shutil.which("openssl") is None:
        missing("needs openssl (Debian: apt-get install openssl)")
    folder.mkdir()
    commands = [line for line in SECURITY.read_text().splitlines() if line.startswith("openssl ")]
    assert len(commands) == 3
    for command in commands:
        subprocess.run(command.split(), cwd=folder, check=True, capture_output=True, timeout=60)
    names = {"CERT": "rank.pem", "KEY": "rank.key", "CA": "ca.pem"}
    return {f"RINGTUNE_TLS_{name}": str(folder / file) for name, file in names.items()}


def openssl(folder: Path, command: str) -> None:
    subprocess.run(["openssl", *command.split()], cwd=folder, check=True, capture_output=True, timeout=60)


def expired(files: dict[str, str]) -> dict[str, str]:
    """Return the variables of a process whose certificate was signed by the authority, and held until yesterday."""
    folder = Path(files["RINGTUNE_TLS_CERT"]).parent
    signed = "-CA ca.pem -CAkey ca.key -CAcreateserial -out expired.pem"
    openssl(folder, f"x509 -req -days -1 -in rank.csr {signed}")
    return {**files, "RINGTUNE_TLS_CERT": str(folder / "expired.pem")}


def self_signed(files: dict[str, str]) -> dict[str, str]:
    """Return the variables of a process whose certificate nobody else has signed."""
    folder = Path(files["RINGTUNE_TLS_CERT"]).parent
    openssl(folder, "req -x509 -key rank.key -days 365 -subj /CN=self -out self.pem")
    return {**files, "RINGTUNE_TLS_CERT": str(folder / "self.pem")}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Variables of a job, and of another one with its own authority."""
    folder = tmp_path_factory.mktemp("tls")
    return [make_files(folder / name) for name in ("job", "other")]


@contextmanager
def serving(environ: dict[str, str]) -> Iterator[int]:
    """A store in a process of its own; its port."""
    command = [sys.executable, "-c", SERVER]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env={**os.environ, **environ}, **pipes) as server:  # type: ignore[call-overload]
        yield int(server.stdout.readline())
        server.stdin.close()
        assert server.wait(60) == 0


def ask(port: int, environ: dict[str, str]) -> str:
    """Return what a client in a process of its own found."""
    command = [sys.executable, "-c", CLIENT, str(port)]
    done = subprocess.run(
        command, env={**os.environ, **environ}, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@contextmanager
def on_the_way(port: int) -> Iterator[tuple[int, bytearray]]:
    """A proxy on the way to a port, and all that passes it."""
    passed = bytearray()

    def carry(source: socket.socket, target: socket.socket) -> None:
        while data := source.recv(65536):
            passed.extend(data)
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)

    def meet() -> None:
        near, _ = listener.accept()
        with near, socket.create_connection(("127.0.0.1", port)) as far:
            answers = threading.Thread(target=carry, args=(far, near))
            answers.start()
            carry(near, far)
            answers.join(60)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=meet)
        thread.start()
        yield listener.getsockname()[1], passed
        thread.join(60)


def test_who_has_a_certificate_of_the_authority_is_served_and_others_are_told_why_not(
    files: list[dict[str, str]],
) -> None:
    own, other = files
    with serving(own) as port:
        assert ask(port, own) == "served at 127.0.0.1"
        for environ in (other, {**own, "RINGTUNE_TLS_CA": other["RINGTUNE_TLS_CA"]}):
            said = ask(port, environ)
            assert said.startswith(f"Protocol what serves the store at 127.0.0.1:{port} is not trusted by TLS: ")
            assert "same authority (RINGTUNE_TLS_CERT" in said
        spoiled = {"unknown ca": self_signed(own), "certificate expired": expired(own)}
        # Of an authority with the same name and another key.
        spoiled["decrypt error"] = {**other, "RINGTUNE_TLS_CA": own["RINGTUNE_TLS_CA"]}
        for why, environ in spoiled.items():  # they trust the store, which does not trust them
            said = ask(port, environ)
            assert said.startswith(f"Protocol what serves the store at 127.0.0.1:{port} does not trust this process's ")
            assert f"certificate: {why}. All processes of a job need certificates of the same authority" in said
        said = ask(port, {})
        assert said.startswith("Protocol ") and "uses TLS and this process does not (RINGTUNE_TLS_CERT)" in said
        assert ask(port, own) == "served at 127.0.0.1", "strangers disturb nobody"
    with serving({}) as port:
        said = ask(port, own)
        assert said.startswith(f"Protocol what serves the store at 127.0.0.1:{port} is not trusted by TLS: ")
        assert said.endswith("or none of them any")
    with serving(expired(own)) as port:
        assert "is not trusted by TLS: certificate has expired. All processes" in ask(port, own)


def test_who_listens_on_the_way_reads_nothing(files: list[dict[str, str]]) -> None:
    for environ, readable in ((files[0], False), ({}, True)):
        with serving(environ) as port, on_the_way(port) as (proxy, passed):
            assert ask(proxy, environ).startswith("served")
            assert len(passed) > 6_000_000
            assert (WORDS in passed) == (b"key" in passed[:2000]) == readable


@pytest.mark.parametrize(
    ("variable", "file", "said"),
    [
        ("KEY", "", "not set: RINGTUNE_TLS_KEY"),
        ("CERT", "nowhere.pem", "a certificate (PEM): No such file or directory"),
        ("CERT", "rank.key", "a certificate (PEM): "),
        ("CERT", "..", "a certificate (PEM): "),
        ("KEY", "ca.key", "the certificate's private key (PEM, without a password): key values mismatch"),
        ("KEY", "locked.key", "the certificate's private key (PEM, without a password): "),
        ("KEY", "ca.pem", "the certificate's private key (PEM, without a password): "),
        ("CA", "rank.key", "the certificate of an authority (PEM): "),
    ],
)
def test_what_cannot_be_used_is_named(files: list[dict[str, str]], variable: str, file: str, said: str) -> None:
    folder = Path(files[0]["RINGTUNE_TLS_CERT"]).parent
    openssl(folder, "rsa -aes256 -passout pass:word -in rank.key -out locked.key")
    path = str(folder / file) if file else ""
    found = ask(1, {**files[0], f"RINGTUNE_TLS_{variable}": path})
    assert found.startswith("ConfigError ") and len(found.splitlines()) == 1
    assert (f"RINGTUNE_TLS_{variable}='{path}' cannot be used as {said}" if file else said) in found


JOB = """
import psutil, torch
import ringtune.torch as hvd
hvd.init()
for step in range(20):
    assert hvd.allreduce(torch.full((1000,), float(hvd.rank())), op=hvd.Sum, name=f"t{step}").eq(1).all()
pairs = len(psutil.Process().net_connections("unix")) // 2
print(f"sums are right, {pairs} encrypted", flush=True)
"""


def run(script: str, environ: dict[str, str], *flags: str) -> subprocess.CompletedProcess[str]:
    """Run a script as two ranks over TCP."""
    command = [sys.executable, "-m", "ringtune.cli", "run", "-np", "2", *flags, "--no-run-dir", sys.executable, "-c"]
    return subprocess.run(
        [*command, script], env={**os.environ, **environ, "RINGTUNE_TRANSPORT": "tcp"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip


@pytest.mark.parametrize("encrypted", [0, 3], ids=["plain", "tls"])
def test_ranks_work_together_over_tls(files: list[dict[str, str]], encrypted: int) -> None:
    needs("torch")
    done = run(JOB, files[0] if encrypted else {})
    assert done.returncode == 0, done.stdout + done.stderr
    # Of each rank: the session's and the runtime's to the store, and the control link.
    assert done.stdout.count(f"sums are right, {encrypted} encrypted") == 2, done.stdout


LOSS = """
import os, signal, torch
import ringtune.torch as hvd
hvd.init()
hvd.allreduce(torch.ones(3), name="first")
if hvd.rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
try:
    hvd.allreduce(torch.ones(3), name="second")
except hvd.HorovodInternalError as error:
    print("told:", error, flush=True)
"""


def test_a_killed_rank_is_named_over_tls(files: list[dict[str, str]]) -> None:
    needs("torch")
    done = run(LOSS, files[0])
    assert done.returncode == 128 + 9
    assert "told: rank 1 on host" in done.stdout


LOADING = """
import torch
import ringtune.torch as hvd
hvd.init()
data = torch.utils.data.TensorDataset(torch.arange(12.0))
for epoch in range(2):
    for batch, in torch.utils.data.DataLoader(data, batch_size=2, num_workers=2, multiprocessing_context="fork"):
        assert hvd.allreduce(batch, op=hvd.Sum, name=f"batch.{epoch}.{int(batch[0])}").equal(2 * batch)
print("loaded", flush=True)
"""
FAILING_ONCE = """
import os, torch
import ringtune.torch as hvd
hvd.init()
assert hvd.allreduce(torch.ones(3), op=hvd.Sum, name="first").eq(2).all()
if os.environ["RINGTUNE_RESTART"] == "0" and hvd.rank() == 1:
    os._exit(7)
hvd.allreduce(torch.ones(3), name="second")
print("done in start", os.environ["RINGTUNE_RESTART"], flush=True)
"""
ELASTIC = """
import os, sys, torch
import ringtune.torch as hvd
hvd.init()

@hvd.elastic.run
def train(state):
    while state.batch < 8:
        total = hvd.allreduce(torch.ones(3), op=hvd.Sum, name="gradient")
        assert total.eq(hvd.size()).all()
        state.batch += 1
        state.commit()
        if state.batch == 4 and not os.path.exists(sys.argv[1]) and hvd.rank() == 1:
            open(sys.argv[1], "w").close()
            os._exit(7)

train(hvd.elastic.TorchState(batch=0))
print("trained", flush=True)
"""


@pytest.mark.slow
def test_forked_children_of_a_rank_do_not_disturb_its_connections(files: list[dict[str, str]]) -> None:
    needs("torch")
    done = run(LOADING, files[0])
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("loaded") == 2


@pytest.mark.slow
def test_a_job_that_is_started_again(files: list[dict[str, str]]) -> None:
    needs("torch")
    done = run(FAILING_ONCE, files[0], "--restarts", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done in start 1") == 2


@pytest.mark.slow
def test_an_elastic_job_goes_on_without_a_worker(files: list[dict[str, str]], tmp_path: Path) -> None:
    needs("torch")
    script = tmp_path / "train.py"
    script.write_text(ELASTIC, encoding="utf-8")
    command = [sys.executable, "-m", "ringtune.cli", "run", "-np", "2", "--min-np", "1", "-H", "localhost:2"]
    done = subprocess.run(
        [*command, "--no-run-dir", sys.executable, str(script), str(tmp_path / "failed")],
        env={**os.environ, **files[0], "RINGTUNE_TRANSPORT": "tcp"},
        capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "failed").exists() and "trained" in done.stdout
