# SPDX-License-Identifier: MIT OR Apache-2.0
"""One lock for the whole process around every capture of a CUDA graph.

A call of CUDA from another thread can break a capture. Whoever calls CUDA outside the thread that owns the
model holds this lock around the calls.
"""

from __future__ import annotations

import threading

CAPTURE_LOCK = threading.RLock()
