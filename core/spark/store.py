"""`Store`: where estimators keep training data, checkpoints and logs: any file system that fsspec knows."""

from __future__ import annotations

import posixpath
import socket
from collections.abc import Mapping
from typing import Any

from fsspec.core import url_to_fs  # type: ignore[import-untyped]

from ringtune.errors import InvalidArgument


class Store:
    """A folder with training data and runs, under a path of any file system.

    Data sets lie in ``intermediate_train_data``, ``intermediate_val_data`` and ``intermediate_test_data`` (number i in
    ``<path>.<i>``), runs in ``runs/<run_id>``. The driver and all executors must reach the path.

    Args:
        prefix_path: The folder, with or without a protocol (``hdfs://``, ``webhdfs://``, ``s3://``, ``gs://``,
            ``dbfs:/`` ...).
        train_path: Where training data lies instead.
        val_path: Where validation data lies instead.
        test_path: Where test data lies instead.
        runs_path: Where runs lie instead.
        save_runs: Whether checkpoints and logs are kept.
        storage_options: Of the file system, as fsspec takes them.
        checkpoint_filename: Name of a run's checkpoint.
    """

    def __init__(
        self,
        prefix_path: str,
        train_path: str | None = None,
        val_path: str | None = None,
        test_path: str | None = None,
        runs_path: str | None = None,
        save_runs: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        checkpoint_filename: str | None = None,
    ) -> None:
        if not isinstance(prefix_path, str) or not prefix_path:
            raise InvalidArgument(f"Store: prefix_path={prefix_path!r}: expected a path or a URL")
        self.prefix_path = self.get_full_path(prefix_path)
        self.storage_options = dict(storage_options or {})
        self._save_runs = save_runs
        self._checkpoint = checkpoint_filename or "checkpoint"
        self._paths = {
            name: self.get_full_path(given) if given else self._join(self.prefix_path, default)
            for name, given, default in (
                ("train", train_path, "intermediate_train_data"),
                ("val", val_path, "intermediate_val_data"),
                ("test", test_path, "intermediate_test_data"),
                ("runs", runs_path, "runs"),
            )
        }

    @staticmethod
    def create(prefix_path: str, *args: Any, **kwargs: Any) -> Store:
        """Return the store of a path; ``dbfs:/`` means Databricks' mount ``/dbfs``."""
        return Store(prefix_path, *args, **kwargs)

    @property
    def fs(self) -> Any:
        """The file system, of fsspec; it knows nothing any more of what was listed: Spark writes, too."""
        found = self._opened(self.prefix_path)[0]
        found.invalidate_cache()
        return found

    def get_full_path(self, path: str) -> str:
        """Return a path with its protocol, as Spark and fsspec both take it."""
        if path.startswith("dbfs:/"):
            return "file:/dbfs/" + path.removeprefix("dbfs:/").lstrip("/")
        if "://" in path:
            return path.rstrip("/")
        return "file:" + posixpath.abspath(path)

    def get_localized_path(self, path: str) -> str:
        """Return a path without its protocol."""
        return str(self._opened(path)[1])

    def get_train_data_path(self, idx: int | None = None) -> str:
        """Return where the training data of a number lies."""
        return self._numbered("train", idx)

    def get_val_data_path(self, idx: int | None = None) -> str:
        """Return where the validation data of a number lies."""
        return self._numbered("val", idx)

    def get_test_data_path(self, idx: int | None = None) -> str:
        """Return where the test data of a number lies."""
        return self._numbered("test", idx)

    def saving_runs(self) -> bool:
        """Return whether checkpoints and logs are kept."""
        return self._save_runs

    def get_runs_path(self) -> str:
        """Return where runs lie."""
        return self._paths["runs"]

    def get_run_path(self, run_id: str) -> str:
        """Return where a run lies."""
        return self._join(self.get_runs_path(), run_id)

    def get_checkpoint_filename(self) -> str:
        """Return the name of a checkpoint."""
        return self._checkpoint

    def get_checkpoint_path(self, run_id: str) -> str:
        """Return where a run's checkpoint lies."""
        return self._join(self.get_run_path(run_id), self._checkpoint)

    def get_checkpoints(self, run_id: str, suffix: str = ".ckpt") -> list[str]:
        """Return a run's further checkpoints, by the end of their names."""
        folder = self.get_localized_path(self.get_run_path(run_id))
        return sorted(str(path) for path in self.fs.glob(posixpath.join(folder, f"*{suffix}")))

    def get_logs_subdir(self) -> str:
        """Return the name of the folder of logs."""
        return "logs"

    def get_logs_path(self, run_id: str) -> str:
        """Return where a run's logs lie."""
        return self._join(self.get_run_path(run_id), self.get_logs_subdir())

    def exists(self, path: str) -> bool:
        """Return whether there is something at a path."""
        return bool(self.fs.exists(self.get_localized_path(path)))

    def read(self, path: str) -> bytes:
        """Return the bytes of a file."""
        found: bytes = self.fs.cat_file(self.get_localized_path(path))
        return found

    def write(self, path: str, content: bytes) -> None:
        """Replace a file in one piece, making its folder if needed; by WebHDFS there is none for a moment."""
        place = self.get_localized_path(path)
        self.fs.makedirs(posixpath.dirname(place), exist_ok=True)
        with self.fs.open(f"{place}.part", "wb") as file:
            file.write(content)
        self.fs.mv(f"{place}.part", place)
        if self.fs.exists(f"{place}.part"):  # WebHDFS renames onto no file that exists, and fsspec does not say so
            self.fs.rm_file(place)
            self.fs.mv(f"{place}.part", place)

    def write_text(self, path: str, text: str) -> None:
        """Replace a text file."""
        self.write(path, text.encode("utf-8"))

    def is_parquet_dataset(self, path: str) -> bool:
        """Return whether a folder holds Parquet files."""
        return bool(self.parquet_files(path))

    def get_parquet_dataset(self, path: str) -> Any:
        """Return the Parquet files of a folder as a ``pyarrow.dataset.Dataset``."""
        from pyarrow import dataset

        return dataset.dataset(self.parquet_files(path), format="parquet", filesystem=self.fs)

    def parquet_files(self, path: str) -> list[str]:
        """Return the Parquet files of a folder, without protocol."""
        place = self.get_localized_path(path)
        if not self.fs.isdir(place):
            return []
        return sorted(str(file) for file in self.fs.find(place) if str(file).endswith(".parquet"))

    def _opened(self, path: str) -> tuple[Any, str]:
        """Return the file system of a path, and the path in it.

        Raises:
            InvalidArgument: There is no driver for it here.
        """
        try:
            found: tuple[Any, str] = url_to_fs(path, **self.storage_options)
        except (ImportError, OSError, ValueError) as error:  # which package is missing, or that none is known
            said = str(error).partition("\n")[0]  # Arrow lists each place where it has looked for Hadoop
            hadoop = isinstance(error, OSError) and path.startswith("hdfs://")
            what = "Java and Hadoop (found by JAVA_HOME and HADOOP_HOME)" if hadoop else "The package"
            raise InvalidArgument(
                f"Store: {path} cannot be reached from {socket.gethostname()}: {said}. "
                f"{what} must be installed where the driver runs and on all executors"
            ) from error
        return found

    def _numbered(self, name: str, number: int | None) -> str:
        return self._paths[name] if number is None else f"{self._paths[name]}.{number}"

    def _join(self, *parts: str) -> str:
        return "/".join((parts[0].rstrip("/"), *parts[1:]))


FilesystemStore = LocalStore = HDFSStore = DBFSLocalStore = Store
"""Horovod's names: fsspec tells file systems apart by their protocol."""

__all__ = ["DBFSLocalStore", "FilesystemStore", "HDFSStore", "LocalStore", "Store"]
