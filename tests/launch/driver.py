"""`ringtune` for the launcher's tests: the real command line, with a stand-in for the store if the runtime is absent.

Plain commands as ranks need no store; only its port must be there.
"""

from __future__ import annotations

import socket
import sys
import types

try:
    import ringtune._native  # noqa: F401
except ImportError:

    class StoreServer:
        def __init__(self, host: str, port: int, secret: str) -> None:
            self._socket = socket.create_server((host, port))
            self.port = self._socket.getsockname()[1]

        def refuse_waiting(self, reason: str, begins: str = "", ends: str = "") -> None:
            pass

        def close(self) -> None:
            self._socket.close()

    stand_in = types.ModuleType("ringtune._native")
    stand_in.StoreServer = StoreServer  # type: ignore[attr-defined]
    stand_in.Error = type("Error", (Exception,), {})  # type: ignore[attr-defined]
    sys.modules["ringtune._native"] = stand_in

from ringtune.cli import main

if __name__ == "__main__":
    sys.exit(main())
