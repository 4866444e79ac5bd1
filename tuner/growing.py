"""Files of lines that somebody else is still writing."""

from __future__ import annotations

from pathlib import Path


class GrowingLines:
    """Reads a growing file, each line once.

    Args:
        path: The file; may not exist yet.
        offset: Bytes that are skipped.
    """

    def __init__(self, path: Path, offset: int = 0) -> None:
        self._path, self._offset = path, offset

    def read(self) -> list[bytes]:
        """Return the whole lines that are new; one that is half written waits for its end."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.splitlines()
