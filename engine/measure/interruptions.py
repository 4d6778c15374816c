# SPDX-License-Identifier: MIT OR Apache-2.0
"""How often the system took the processor away from this process."""

from __future__ import annotations

try:
    import resource
except ImportError:  # not a POSIX system
    resource = None  # type: ignore[assignment]


def interruptions() -> int:
    """Involuntary context switches of all threads so far; always 0 where the system does not count them.

    All threads, because the workers of a pass are held up like the thread that waits for them. A call takes a
    few microseconds.
    """
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw if resource else 0
