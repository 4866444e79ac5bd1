"""Records of a part as columns, block by block; `ringtune.timeline.reading.part_layout` says what they are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from ringtune.layout import current_keys
from ringtune.timeline.distinct import distinct_numbers
from ringtune.timeline.reading import part_layout as words
from ringtune.timeline.reading.columns import SpanBuilder
from ringtune.timeline.reading.part_layout import RECORD, Records
from ringtune.timeline.spans import UNKNOWN, Codes, Instant, Ints
from ringtune.timeline.vocabulary import KNOBS, QUEUE_NAME, Stage

Columns = dict[str, NDArray[Any]]

_KNOWN_STAGES = np.isin(np.arange(256), sorted(Stage))
_STAGE_OF_HEAD = {words.BATCH: Stage.NEGOTIATE, words.COPIES_IN: Stage.COPY_IN, words.COPIES_OUT: Stage.COPY_OUT}
_MOST_LOST_TEXTS = 1 << 22
"""Numbers count up, but for what a full disk has lost."""
_LARGEST_NS = 2_200_000_000_000_000_000
"""Moments beyond this (70 years) are nonsense."""


@dataclass(frozen=True)
class _List:
    """Tensors as codes of the table's names, and their bytes."""

    tensors: Codes
    bytes: Ints


class _CodesOfTexts:
    """What numbers of a file are among the codes of the table; each is looked up once.

    Attributes:
        most: Larger numbers stand for nothing, as 0 does: only damage has them.
    """

    def __init__(self, code_of: Callable[[int], int], most: int = 0) -> None:
        self.most = most
        self._code_of = code_of
        self._codes = np.full(1024, -1, dtype=np.int32)

    def __call__(self, numbers: NDArray[Any]) -> Codes:
        """The codes of numbers."""
        if not len(numbers):
            return np.empty(0, dtype=np.int32)
        most = int(numbers.max())
        if most > self.most:
            numbers, most = np.where(numbers > self.most, 0, numbers), self.most
        if most >= len(self._codes):
            self._codes = np.concatenate((self._codes, np.full(most + 1, -1, dtype=np.int32)))
        found: Codes = self._codes[numbers]
        if found.min() < 0:
            for number in np.unique(numbers[found < 0]).tolist():
                self._codes[number] = self._code_of(number)
            found = self._codes[numbers]
        return found


class _Dense:
    """Numbers below 2^16 as small ones."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self._places = np.full(1 << 16, -1, dtype=np.int64)

    def __call__(self, numbers: NDArray[np.uint16]) -> Ints:
        found = self._places[numbers]
        if len(found) and found.min() < 0:
            for number in np.unique(numbers[found < 0]).tolist():
                self._places[number] = len(self.values)
                self.values.append(number)
            found = self._places[numbers]
        return found


class RecordDecoder:
    """Turns the records of one file into spans and instants.

    Args:
        spans: Takes the spans; may be that of other files too, whose texts then have the same codes.
        rank: Rank of the file.

    Attributes:
        instants: Rare events, on the part's own clock.
        end: Spans recorded and dropped, as the file's end says; None before it has come.
        skipped: Records that made no sense; spans that did not are counted by ``spans``.
    """

    def __init__(self, spans: SpanBuilder, rank: int) -> None:
        self.instants: list[Instant] = []
        self.end: tuple[int, int] | None = None
        self.skipped = 0
        self._spans = spans
        self._rank = rank
        self._texts: dict[int, str] = {0: ""}
        self._lists: dict[int, _List] = {}
        self._tensors = _CodesOfTexts(lambda number: spans.tensor_code(self.text(number)))
        self._ranges = _CodesOfTexts(lambda number: spans.name_code(self.text(number)))
        self._facts_texts = _CodesOfTexts(lambda number: spans.fact_code(_object(b"{%b}" % self.text(number).encode())))
        self._names = _CodesOfTexts(lambda number: spans.name_code(words.name_of(number & 255, number >> 8)), 0xFFFF)
        self._facts = _FactCodes(spans)

    def text(self, number: int) -> str:
        """A text of the file; empty where there is none of that number."""
        return self._texts.get(number, "")

    def knows(self, number: int) -> bool:
        """Whether a text has come."""
        return number in self._texts

    def decode(self, records: Records, *, last: bool = False) -> int:
        """Take records over; return how many were: the rest belongs together with what has not been read yet.

        Args:
            records: The records from where the last call ended.
            last: No others follow: what is not whole is left out.
        """
        stage = records["stage"]
        odd = np.flatnonzero(stage >= words.TEXT)
        taken = len(records)
        if len(odd):
            taken = self._heads(records, odd, last=last)
            records, stage = records[:taken], stage[:taken]
        plain = _KNOWN_STAGES[stage]
        if not plain.all():
            self.skipped += int(np.count_nonzero(~plain & (stage < words.TEXT)))
            about = np.flatnonzero(stage == words.ABOUT)
            columns = self._plain(records[plain])
            if len(about):
                self._rename(columns, records, plain, about)
            self._spans.keep(columns)
        elif len(records):
            self._spans.keep(self._plain(records))
        return taken

    def _heads(self, records: Records, odd: NDArray[np.intp], *, last: bool) -> int:
        """Take over all records that are no spans; return how many records are whole."""
        stage = records["stage"]
        inside = np.flatnonzero(stage != words.WORDS)
        if not len(inside):
            self.skipped += len(records)
            return len(records)
        self.skipped += int(inside[0])
        runs = np.diff(inside, append=len(records)) - 1  # how many words follow each
        heads = stage[inside] >= words.TEXT
        places, runs = inside[heads], runs[heads]
        if not len(places):
            return len(records)
        kinds = stage[places]
        for at in np.flatnonzero((kinds == words.TEXT) | (kinds == words.TENSORS)).tolist():
            self._learn(records, int(places[at]), int(kinds[at]), int(runs[at]))
        needed = self._needed(records, places, kinds)
        torn = bool(places[-1] == inside[-1] and runs[-1] < needed[-1])
        taken = int(places[-1]) if torn and not last else len(records)
        whole = (runs >= needed) & (needed >= 0)
        self.skipped += int(np.count_nonzero(~whole)) - torn
        for kind in (words.BATCH, words.COPIES_IN, words.COPIES_OUT):
            chosen = whole & (kinds == kind)
            if chosen.any():
                self._batches(records, places[chosen], kind)
        for place in places[whole & ((kinds == words.EVENT) | (kinds == words.END))].tolist():
            self._event(records, place)
        return taken

    def _learn(self, records: Records, place: int, kind: int, run: int) -> None:
        head = records[place]
        number, bytes_ = int(head["name"]), int(head["bytes"])
        length = bytes_ if kind == words.TEXT else int(head["batch"]) * words.TENSOR.itemsize
        if length > run * words.WORD_BYTES or number > self._tensors.most + _MOST_LOST_TEXTS:
            return
        inside = _words(records, place, length)
        if kind == words.TEXT:
            self._texts[number] = inside.decode("utf-8", "replace")
            for codes in (self._tensors, self._ranges, self._facts_texts):
                codes.most = max(codes.most, number)
            return
        tensors = np.frombuffer(inside, words.TENSOR)
        self._lists[number] = _List(self._tensors(tensors["name"]), tensors["bytes"].astype(np.int64))

    def _needed(self, records: Records, places: NDArray[np.intp], kinds: NDArray[np.uint8]) -> Ints:
        """How many words follow each of these records; -1: not known, for it names a list that is not there."""
        heads = records[places]
        counts = np.zeros(len(places), dtype=np.int64)
        texts = (kinds == words.TEXT) | (kinds == words.EVENT)
        counts[texts] = np.minimum(heads["bytes"][texts], 1 << 40).astype(np.int64)
        lists = kinds == words.TENSORS
        counts[lists] = heads["batch"][lists].astype(np.int64) * words.TENSOR.itemsize
        for place in np.flatnonzero((kinds >= words.COPIES_IN) & (kinds <= words.BATCH)).tolist():
            known = self._lists.get(int(heads["bytes"][place]))
            more = 2 if kinds[place] == words.BATCH else 0
            counts[place] = -words.WORD_BYTES if known is None else 4 * (len(known.bytes) + more)
        found: Ints = -(-counts // words.WORD_BYTES)
        # A span must follow.
        found[(kinds == words.ABOUT) & (places == len(records) - 1)] = 1
        return found

    def _batches(self, records: Records, places: NDArray[np.intp], kind: int) -> None:
        numbers = records["bytes"][places]
        for number in np.unique(numbers).tolist():
            mine = places[numbers == number]
            known = self._lists[number]
            count, more = len(known.bytes), 2 if kind == words.BATCH else 0
            slots = -(-4 * (count + more) // words.WORD_BYTES)
            rows = mine[:, None] + 1 + np.arange(slots)
            inside = records[rows.ravel()].view(np.uint32).reshape(len(mine), slots, -1)[:, :, : words.WORD_BYTES // 4]
            numbers_of = inside.reshape(len(mine), -1)[:, : count + more].astype(np.int64)
            heads = records[mine]
            sane = _sane(heads["begin_ns"]) & _sane(heads["end_ns"])
            if kind == words.BATCH:
                sane &= numbers_of[:, 1] < _LARGEST_NS >> 32
            self.skipped += int(np.count_nonzero(~sane))
            if count and sane.any():
                self._keep_batches(heads[sane], known, numbers_of[sane], kind)

    def _keep_batches(self, heads: Records, known: _List, numbers: Ints, kind: int) -> None:
        """Spans of batches of one list: of each its negotiation and its time in the queue, or its copies."""
        count = len(known.bytes)
        heads = heads.copy()
        heads["stage"], heads["name"], heads["bytes"] = _STAGE_OF_HEAD[kind], 0, 0
        columns = {name: np.repeat(values, count) for name, values in self._plain(heads).items()}
        columns["tensor"], columns["bytes"] = (np.tile(column, len(heads)) for column in (known.tensors, known.bytes))
        begin = heads["begin_ns"].astype(np.int64)[:, None]
        if kind != words.BATCH:
            ends = begin + np.cumsum(numbers, axis=1)
            self._spans.keep({**columns, "begin_ns": (ends - numbers).ravel(), "end_ns": ends.ravel()})
            return
        submitted = begin + numbers[:, 2:]
        # A tensor may be submitted after the agreement where a clock went backwards.
        agreed = np.maximum(heads["end_ns"].astype(np.int64)[:, None], submitted)
        started = agreed + (numbers[:, 0] | numbers[:, 1] << 32)[:, None]
        self._spans.keep({**columns, "begin_ns": submitted.ravel(), "end_ns": agreed.ravel()})
        queue = {"stage": np.full(len(heads) * count, Stage.QUEUE, np.uint8)}
        queue["name"] = np.full(len(heads) * count, self._spans.name_code(QUEUE_NAME), np.int32)
        self._spans.keep({**columns, **queue, "begin_ns": agreed.ravel(), "end_ns": started.ravel()})

    def _event(self, records: Records, place: int) -> None:
        head = records[place]
        at_ns = int(head["begin_ns"])
        if head["stage"] == words.END:
            self.end = (at_ns, int(head["end_ns"]))
            return
        args = _object(_words(records, place, int(head["bytes"])))
        name = self.text(int(head["name"]))
        if abs(at_ns) > _LARGEST_NS:
            self.skipped += 1
            return
        args = current_keys(args) if name == KNOBS else args
        self.instants.append(Instant(name, self.text(int(head["batch"])), self._rank, at_ns, args))

    def _plain(self, records: Records) -> Columns:
        """Columns of records that are spans."""
        stage = records["stage"]
        halves = records.view(np.uint16).reshape(len(records), RECORD.itemsize // 2)
        begin, end = records["begin_ns"].copy(), records["end_ns"].copy()
        name, tensor = self._names(halves[:, 19]), self._tensors(records["name"])
        step = records["step"].astype(np.int64)
        step[step == words.NO_STEP] = UNKNOWN
        knobs_version = records["knobs_version"].astype(np.int32)
        batch = records["batch"].astype(np.int64)
        batch[batch >= words.FIRST_MESSAGE] -= 1 << 32
        present = np.bincount(stage, minlength=Stage.COUNTER + 1)
        if present[Stage.RANGE]:
            ranges = stage == int(Stage.RANGE)
            name[ranges], tensor[ranges] = self._ranges(records["name"][ranges]), 0
        if present[Stage.COUNTER]:
            counters = stage == int(Stage.COUNTER)
            tensor[counters], step[counters], knobs_version[counters] = 0, UNKNOWN, 0
            end[counters] = begin[counters]
            batch[counters & (records["kind"] == 1)] = 0  # of a speed
        if present[Stage.CYCLE]:
            cycles = stage == int(Stage.CYCLE)
            end[cycles] = begin[cycles]
        np.maximum(begin, end, out=end)  # a clock that went backwards
        wrong = ~(_sane(begin) & _sane(end))
        if wrong.any():  # left out by the builder
            begin[wrong], end[wrong] = 1, 0
        return {
            "begin_ns": begin,
            "end_ns": end,
            "rank": np.full(len(records), self._rank, dtype=np.int32),
            "stage": stage.copy(),
            "name": name,
            "tensor": tensor,
            "bytes": records["bytes"].astype(np.int64),
            "batch": batch,
            "step": step,
            "knobs_version": knobs_version,
            "facts": self._facts(halves, records["peer"]),
        }

    def _rename(self, columns: Columns, records: Records, plain: NDArray[np.bool_], about: NDArray[np.intp]) -> None:
        """Give spans the names and facts that stand before them."""
        about = about[(about + 1 < len(records))]
        about = about[plain[about + 1]]
        rows = (np.cumsum(plain) - 1)[about + 1]
        for field, column, codes in (("name", "name", self._ranges), ("batch", "facts", self._facts_texts)):
            numbers = records[field][about]
            named = numbers > 0
            columns[column][rows[named]] = codes(numbers[named])


class _FactCodes:
    """Codes of what spans say beside their numbers: few distinct ones, found without sorting."""

    def __init__(self, spans: SpanBuilder) -> None:
        self._spans = spans
        self._dense = tuple(_Dense() for _ in range(4))
        self._codes: dict[tuple[int, ...], int] = {}

    def __call__(self, halves: NDArray[np.uint16], peers: NDArray[np.int32]) -> Codes:
        """Return the codes of spans.

        Args:
            halves: Their records, as 16-bit numbers.
            peers: Their peers.
        """
        if not len(peers):
            return np.empty(0, dtype=np.int32)
        near = (peers >= -1) & (peers < 0xFFFF)
        columns = (halves[:, 19], halves[:, 21], halves[:, 20], (peers & 0xFFFF).astype(np.uint16))
        places = [dense(column) for dense, column in zip(self._dense, columns, strict=True)]
        sizes = [len(dense.values) for dense in self._dense]
        joined = np.ravel_multi_index(tuple(places), tuple(sizes)) if np.prod(sizes) < 2**62 else places[0]
        numbers, place = distinct_numbers(joined)
        codes = np.empty(len(numbers), dtype=np.int32)
        for at, number in enumerate(numbers.tolist()):
            found = np.unravel_index(number, tuple(sizes))
            key = tuple(dense.values[int(one)] for dense, one in zip(self._dense, found, strict=True))
            if key not in self._codes:
                peer = -1 if key[3] == 0xFFFF else key[3]
                self._codes[key] = self._spans.fact_code(words.facts_of(key[0], key[1], key[2], peer))
            codes[at] = self._codes[key]
        result: Codes = codes[place]
        if not near.all():  # no job has so many ranks: damage
            result[~near] = self._spans.fact_code({})
        return result


def _sane(moments: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which moments are of this century."""
    return (moments > -_LARGEST_NS) & (moments < _LARGEST_NS)


def _words(records: Records, place: int, length: int) -> bytes:
    """Bytes in the words that follow a record."""
    slots = -(-length // words.WORD_BYTES)
    rows = records[place + 1 : place + 1 + slots].view(np.uint8).reshape(slots, RECORD.itemsize)
    return rows[:, : words.WORD_BYTES].tobytes()[:length]


def _object(text: bytes) -> Mapping[str, Any]:
    """A JSON object; an empty one for anything else."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
