from __future__ import annotations

import pytest

from ringtune.launch.output import OPEN_LINE_BYTES, Console, Lines, TextLines


def pieces_of(*chunks: bytes) -> list[bytes]:
    pieces: list[bytes] = []
    lines = Lines(pieces.append)
    for chunk in chunks:
        lines.feed(chunk)
    lines.flush()
    return pieces


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"a\nb\n"], [b"a\n", b"b\n"]),
        ([b"a", b"b\nc"], [b"ab\n", b"c"]),
        ([b"10%\r20%\r"], [b"10%\r", b"20%\r"]),
        ([b"a\r\nb\r\n"], [b"a\r\n", b"b\r\n"]),
        ([b"a\r", b"\nb"], [b"a\r\n", b"b"]),
        ([b"\n\n"], [b"\n", b"\n"]),
        ([b""], []),
        ([b"\xff\xfe\n\x00"], [b"\xff\xfe\n", b"\x00"]),
    ],
)
def test_lines(chunks: list[bytes], expected: list[bytes]) -> None:
    assert pieces_of(*chunks) == expected


def test_long_line_is_passed_on_before_its_end() -> None:
    pieces: list[bytes] = []
    lines = Lines(pieces.append)
    lines.feed(b"x" * OPEN_LINE_BYTES)
    assert pieces == [b"x" * OPEN_LINE_BYTES]
    assert not lines.waiting


Streams = pytest.CaptureFixture[bytes]


def test_open_line_of_another_rank_is_ended(capfdbinary: Streams) -> None:
    console = Console()
    console.put(0, "stdout", b"loading")
    console.put(1, "stdout", b"hello\n")
    console.put(0, "stdout", b" done\n")
    assert capfdbinary.readouterr().out == b"[0] loading\n[1] hello\n[0]  done\n"


def test_open_line_is_continued(capfdbinary: Streams) -> None:
    console = Console()
    console.put(0, "stdout", b"load")
    console.put(0, "stdout", b"ing\n")
    assert capfdbinary.readouterr().out == b"[0] loading\n"


def test_streams_stay_apart(capfdbinary: Streams) -> None:
    console = Console()
    console.put(0, "stdout", b"out")
    console.put(0, "stderr", b"err\n")
    console.say("word")
    console.close_line("stdout")
    assert capfdbinary.readouterr() == (b"[0] out\n", b"[0] err\nringtune: word\n")


def test_no_prefix(capfdbinary: Streams) -> None:
    Console(prefix=False).put(3, "stdout", b"plain\n")
    assert capfdbinary.readouterr().out == b"plain\n"


def test_timestamp(capfdbinary: Streams) -> None:
    Console(timestamp=True).put(3, "stdout", b"x\n")
    stamp, _, rest = capfdbinary.readouterr().out.partition(b" ")
    assert len(stamp) == len(b"2026-01-31T12:00:00.123")
    assert rest == b"[3] x\n"


def test_text_lines_join_pieces() -> None:
    seen: list[str] = []
    lines = TextLines(seen.append)
    for piece in (b"a", b"b\n", b"c\r\n", b"\xff\n", b"end"):
        lines.put(piece)
    lines.end()
    assert seen == ["ab", "c", "\ufffd", "end"]
