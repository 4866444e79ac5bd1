"""Standard input, output and error of a process whose surroundings may be odd.

All that the commands print, by click, rich or `print`, goes through `sys.stdout` and `sys.stderr`; so these are made
fit once, before a command runs:

* A stream that was closed is opened on ``/dev/null``. Otherwise the next file or socket would get its number, and
  what is meant for the terminal would be written there.
* A character that the stream's encoding cannot hold is replaced by an ASCII stand-in that can be read: "µs" becomes
  "us". Bytes of file names that are no text pass as they are.
"""

from __future__ import annotations

import codecs
import errno
import io
import os
import sys
import unicodedata
from contextlib import suppress
from typing import TextIO

_ERRORS = "ringtune.stand-in"
_ASCII = "ringtune_ascii"

_WORDS: dict[str, int | str | None] = {
    "…": "...", "±": "+-", "≤": "<=", "≥": ">=", "≠": "!=", "→": "->", "←": "<-", "↔": "<->",
    "Δ": "delta", "σ": "sigma", "ß": "ss", "æ": "ae", "°": " deg", "✓": "yes", "✗": "no",
}  # fmt: skip
_STAND_INS: dict[int, int | str | None] = {
    **str.maketrans("–—−·•×÷≈µμø“”„‘’─━═│┃║▎▏█▉▊▋▌▍▆▇▄▅▁▂▃", '---|*x/~uuo"""\'\'--=|||||########==___'),
    **str.maketrans(_WORDS),
}
_BOXES = range(0x2500, 0x2580)


def make_fit() -> None:
    """Make the process's three streams fit for printing; see the module. May be called again."""
    occupy()
    sys.stdin = sys.stdin or open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    codecs.register_error(_ERRORS, _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            ascii_only = codecs.lookup(stream.encoding).name == "ascii"
            stream.reconfigure(encoding=_ascii_encoding() if ascii_only else None, errors=_ERRORS)


def screen_width(otherwise: int) -> int | None:
    """Return how wide a table may be: None for what rich finds out, a terminal's columns or those that COLUMNS says.

    Args:
        otherwise: For a file or a pipe, which need not fit a screen.
    """
    return None if sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit() else otherwise


def occupy() -> None:
    """Open ``/dev/null`` at each of the numbers 0, 1 and 2 that is closed; programs started from here get it too."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)


def stand_in(text: str) -> str:
    """Return text in ASCII that means the same to a reader; ``?`` where nothing does."""
    return "".join(map(_stand_in, text))


def flush() -> OSError | None:
    """Write out what was printed; return why that cannot be done, and print nothing there from then on."""
    failed = None
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            silence(stream)
            failed = failed or (error if stream is sys.stdout else None)
        except ValueError:  # closed by the command
            pass
    return failed


def silence(stream: TextIO) -> None:
    """Send a stream that cannot be written to ``/dev/null``, or the interpreter would complain at its end."""
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
        stream.flush()


def is_output_error(error: OSError) -> bool:
    """Whether an error is about a stream and not about a file: it names none, its number is a device's or a pipe's."""
    return error.filename is None and error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF, errno.EDQUOT, errno.EFBIG)


def _stand_in(character: str) -> str:
    if character.isascii():
        return character
    found = character.translate(_STAND_INS)
    if not found.isascii():
        found = unicodedata.normalize("NFKD", found).translate(_STAND_INS).encode("ascii", "ignore").decode()
    if not found:
        found = "+" if ord(character) in _BOXES else "" if unicodedata.combining(character) else "?"
    return found


def _replace(error: UnicodeError) -> tuple[str | bytes, int]:
    """Error handler of codecs: gives the stand-in of what cannot be encoded."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    wrong = error.object[error.start : error.end]
    if "\udc80" <= wrong[0] <= "\udcff":  # a byte of a file name that is no text
        return bytes([ord(wrong[0]) - 0xDC00]), error.start + 1
    end = next((at for at, one in enumerate(wrong) if "\udc80" <= one <= "\udcff"), len(wrong))
    return stand_in(wrong[:end]), error.start + end


def _ascii_encoding() -> str:
    """Return the name of ASCII under which click takes it for meant: it writes UTF-8 where a stream says "ascii"."""
    ascii_codec = codecs.lookup("ascii")
    found = codecs.CodecInfo(
        ascii_codec.encode,
        ascii_codec.decode,
        ascii_codec.streamreader,
        ascii_codec.streamwriter,
        ascii_codec.incrementalencoder,
        ascii_codec.incrementaldecoder,
        name=_ASCII,
    )
    with suppress(LookupError):
        return codecs.lookup(_ASCII).name
    codecs.register(lambda name: found if name == _ASCII else None)
    return _ASCII
