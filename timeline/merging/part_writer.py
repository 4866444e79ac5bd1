"""Writing parts in the recorder's format (`ringtune.timeline.reading.part_layout`): generated and imported jobs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from ringtune.timeline.merging.writer import atomic_file
from ringtune.timeline.reading import part_layout as words
from ringtune.timeline.reading.part_layout import HEADER, RECORD, Records
from ringtune.timeline.spans import Instant, Ints, PartInfo, SpanTable
from ringtune.timeline.vocabulary import KINDS, NEGOTIATE_PREFIX, RING_PREFIX, Stage

BLOCK_SPANS = 1 << 17

_ALGORITHM_NUMBERS = {name: number for number, name in words.ALGORITHMS.items()}
_TYPE_NUMBERS = {name: number for number, name in enumerate(words.DTYPES)}


def write_part(path: Path, info: PartInfo, spans: SpanTable, instants: Sequence[Instant]) -> None:
    """Write one rank's part; gzip when the name ends in ``.gz``.

    Raises:
        TraceIoError: The file cannot be written.
    """
    texts = _Texts()
    header = np.zeros(1, HEADER)
    header["magic"], header["format"], header["record_bytes"] = words.MAGIC, words.PART_FORMAT, RECORD.itemsize
    for name in ("unix_ns", "monotonic_ns", "rank", "size", "file"):
        header[name] = getattr(info, name)
    header["host"], header["job"] = texts.number(info.host), texts.number(info.job)
    recorded = len(spans) if info.recorded is None else info.recorded
    tensors = np.array([texts.number(tensor) if tensor else 0 for tensor in spans.tensors], dtype=np.uint32)
    looks = _Looks(spans, texts)
    rare = [event for instant in instants for event in _event(instant, texts)]
    with atomic_file(path) as file:
        file.write(header.tobytes() + texts.fresh() + b"".join(rare))
        for start in range(0, len(spans), BLOCK_SPANS):
            block = _records(spans.take(slice(start, start + BLOCK_SPANS)), tensors, looks)
            file.write(texts.fresh() + block.tobytes())
        if not info.truncated:
            file.write(_head(words.END, begin_ns=recorded, end_ns=info.dropped))


class _Texts:
    """Texts of a file by number; those that the file has not been told yet are `fresh`."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._fresh: list[bytes] = []

    def number(self, text: str) -> int:
        """The number of a text."""
        known = self._numbers.get(text)
        if known is not None:
            return known
        self._numbers[text] = len(self._numbers) + 1
        inside = text.encode("utf-8", "replace")
        self._fresh += [_head(words.TEXT, name=self._numbers[text], bytes=len(inside)), _words(inside)]
        return self._numbers[text]

    def fresh(self) -> bytes:
        """Records of the texts since the last time."""
        found, self._fresh = b"".join(self._fresh), []
        return found


def _head(stage: int, **fields: int) -> bytes:
    record = np.zeros(1, RECORD)
    record["stage"] = stage
    for name, value in fields.items():
        record[name] = value
    return record.tobytes()


def _words(inside: bytes) -> bytes:
    count = -(-len(inside) // words.WORD_BYTES)
    rows = np.zeros((count, RECORD.itemsize), np.uint8)
    padded = inside.ljust(count * words.WORD_BYTES, b"\0")
    rows[:, : words.WORD_BYTES] = np.frombuffer(padded, np.uint8).reshape(count, words.WORD_BYTES)
    rows[:, 38] = words.WORDS
    return rows.tobytes()


def _event(instant: Instant, texts: _Texts) -> Iterable[bytes]:
    args = orjson.dumps(dict(instant.args), default=str)
    name, category = texts.number(instant.name), texts.number(instant.category)
    yield _head(words.EVENT, begin_ns=instant.at_ns, name=name, batch=category, bytes=len(args))
    yield _words(args)


class _Looks:
    """What stage, name and facts of spans are as fields of a record, each combination looked up once."""

    def __init__(self, spans: SpanTable, texts: _Texts) -> None:
        self._spans = spans
        self._texts = texts
        self._known: dict[int, tuple[int, ...]] = {}
        self._facts = [orjson.loads(b"{%b}" % text.encode()) for text in spans.fact_texts]

    def of(self, block: SpanTable) -> Ints:
        """Return kind, process set, dtype, flags, peer, and texts of name and facts, span by span."""
        facts, names = len(self._spans.fact_texts), len(self._spans.names)
        codes = (block.stage.astype(np.int64) * names + block.name) * facts + block.facts
        distinct, place = np.unique(codes, return_inverse=True)
        rows = [self._look(code, (code // facts // names, code // facts % names, code % facts))
                for code in distinct.tolist()]  # fmt: skip
        found: Ints = np.array(rows, dtype=np.int64).reshape(-1, 7)[place]
        return found

    def _look(self, code: int, parts: tuple[int, int, int]) -> tuple[int, ...]:
        if code not in self._known:
            stage, name, facts = Stage(parts[0]), self._spans.names[parts[1]], self._facts[parts[2]]
            kind, about_name = self._kind(stage, name)
            process_set, dtype, flags, peer = 0, words.NO_DTYPE, words.NO_WIRE << 1, -1
            if stage == Stage.COMMUNICATE:
                kind |= _ALGORITHM_NUMBERS.get(facts.get("algorithm", ""), 0) << 4
            dtype = _TYPE_NUMBERS.get(facts.get("dtype", ""), words.NO_DTYPE)
            wire = _TYPE_NUMBERS.get(facts.get("wire", ""), words.NO_WIRE)
            flags = wire << 1 | (facts.get("step_schedule") == 1)
            process_set = facts.get("process_set", 0)
            peer = facts.get("device" if words.is_of_device(stage) else "peer", -1)
            fits = all(isinstance(one, int) for one in (process_set, peer))
            if not fits or not 0 <= process_set < 1 << 16 or not -1 <= peer < 0xFFFF:
                process_set, peer = 0, -1
            same = words.facts_of(int(stage) | kind << 8, dtype | flags << 8, process_set, peer) == facts
            text = "" if same else self._spans.fact_texts[parts[2]]
            self._known[code] = (
                kind,
                process_set,
                dtype,
                flags,
                peer,
                about_name,
                self._texts.number(text) if text else 0,
            )
        return self._known[code]

    def _kind(self, stage: Stage, name: str) -> tuple[int, int]:
        """Return the kind that has this name, and the text of the name where none has."""
        if stage == Stage.RANGE:
            return words.NO_KIND, self._texts.number(name)
        operation = name.removeprefix(NEGOTIATE_PREFIX if stage == Stage.NEGOTIATE else RING_PREFIX)
        kind = words.NO_KIND
        if stage in (Stage.NEGOTIATE, Stage.COMMUNICATE):
            kind = KINDS.index(operation) if operation in KINDS else 15
        elif stage in (Stage.PIECE, Stage.COUNTER):
            kind = next((one for one in range(4) if words.name_of(stage, one) == name), 0)
        return kind, 0 if words.name_of(stage, kind) == name else self._texts.number(name)


def _records(block: SpanTable, tensors: NDArray[np.uint32], looks: _Looks) -> Records:
    records = np.zeros(len(block), RECORD)
    look = looks.of(block)
    for name in ("begin_ns", "end_ns", "bytes", "batch", "knobs_version", "stage"):
        records[name] = getattr(block, name)
    records["step"] = np.where(block.step < 0, words.NO_STEP, block.step)
    records["name"] = tensors[block.tensor]
    for at, name in enumerate(("kind", "process_set", "dtype", "flags", "peer")):
        records[name] = look[:, at]
    ranges = block.stage == int(Stage.RANGE)
    records["name"][ranges] = look[ranges, 5]
    name_texts = np.where(ranges, 0, look[:, 5])
    about = (name_texts > 0) | (look[:, 6] > 0)
    if not about.any():
        return records
    places = np.arange(len(block)) + np.cumsum(about)
    found = np.zeros(len(block) + int(about.sum()), RECORD)
    found[places] = records
    before = places[about] - 1
    found["stage"][before] = words.ABOUT
    found["name"][before], found["batch"][before] = name_texts[about], look[about, 6]
    return found
