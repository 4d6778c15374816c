# SPDX-License-Identifier: MIT OR Apache-2.0
"""A peer in its own process: it loads once, then times rounds when it is asked to, and sleeps in between.

One JSON object a line in each direction. To the peer: the specification, then {"suite", "rows"} requests; the
end of its input ends it. From the peer: {"ready": ...} or {"error", "next_step"}, then {"ms": [...]} replies.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from engine.errors import RondoError

_ROOT = Path(__file__).parents[3]
_FAULTS = frozenset({signal.SIGILL, signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT})


class PeerError(RondoError):
    """A peer that could not be loaded, stopped answering or ended."""

    title = "A peer engine is left out"


class PeerCrashedError(PeerError):
    """A peer that a fault of its code ended, such as an instruction the processor refuses.

    Not one that was killed, as the system does where memory is short.
    """


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """What a loaded peer says about itself; `read_bytes` are the weight bytes one pass reads."""

    weight_format: str
    read_bytes: int
    version: str


class PeerProcess:
    """A running peer. `turn` blocks until the peer has timed its rounds."""

    def __init__(
        self,
        label: str,
        command: Sequence[str],
        specification: Mapping[str, Any],
        *,
        load_timeout_s: float = 900.0,
        turn_timeout_s: float = 1800.0,
    ) -> None:
        """Start the peer and wait until it is loaded; PeerError says why it is not."""
        self.label = label
        self._turn_timeout_s = turn_timeout_s
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the peer
        environment = dict(os.environ)
        paths = [str(_ROOT), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment,
            encoding="utf-8",
        )
        self._lines: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, name=f"peer {label}", daemon=True)
        self._reader.start()
        try:
            reply = self._ask(specification, load_timeout_s)
            ready = reply["ready"]
            self.info = PeerInfo(ready["weight_format"], ready["read_bytes"], ready["version"])
        except BaseException:
            self.close()
            raise

    def turn(self, suite: str, rows: int) -> list[float]:
        """Milliseconds of the rounds the peer timed; PeerError when it has ended or does not answer."""
        return self._ask({"suite": suite, "rows": rows}, self._turn_timeout_s)["ms"]

    def close(self) -> None:
        """End the peer and wait for it, so that its memory is free again."""
        # It may have ended before it read its last request.
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(10.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join()
        self._process.stdout.close()
        self._errors.close()

    def _read(self) -> None:
        for line in self._process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def _ask(self, request: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._lines.get(timeout=timeout_s)
        except BrokenPipeError:
            line = ""
        except queue.Empty:
            self._process.kill()
            raise PeerError(
                f"{self.label} did not answer within {timeout_s:g} s.",
                next_step="Use fewer rows or a smaller shape.",
            ) from None
        if not line:
            ending = self._ending()
            kind = PeerCrashedError if -self._process.returncode in _FAULTS else PeerError
            raise kind(
                f"{self.label} ended early ({ending}).",
                next_step="Run with fewer layers if memory was short.",
            )
        reply = json.loads(line)
        if "error" in reply:
            raise PeerError(f"{self.label}: {reply['error']}", next_step=reply["next_step"])
        return reply

    def _ending(self) -> str:
        code = self._process.wait()
        self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, self._errors.tell() - 2000))
        words = self._errors.read().decode("utf-8", "replace").strip().splitlines()
        return f"exit status {code}" + (f": {words[-1]}" if words else "")


def python_command(module: str) -> list[str]:
    """The command that runs a module of this program in another process."""
    return [sys.executable, "-m", module]
