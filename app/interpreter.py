# SPDX-License-Identifier: MIT OR Apache-2.0
"""Keeps Python from holding the window while the engine's libraries come in.

Three things held it, each measured with a 1 ms timer: the default switch interval (5 ms each time the engine
holds the interpreter), the linking of PyTorch's libraries (an import does it with the interpreter held, most
of a second), and full garbage collections over the objects of those imports (hundreds of milliseconds).
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import os
import sys
import threading
from pathlib import Path

SWITCH_INTERVAL_S = 0.0005


def hold_still() -> None:
    """Hand over often, and collect no garbage until `loaded_once`."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.disable()


def loaded_once() -> None:
    """The imports are done: what they made is never looked at again, and garbage is collected as usual."""
    if not gc.isenabled():
        gc.freeze()
        gc.enable()


def link_libraries() -> threading.Thread:
    """Begin to link PyTorch's libraries in a thread that does not hold the interpreter.

    The import that comes later finds them linked. Where they are not found it does the work itself.
    """
    thread = threading.Thread(target=_link, name="rondo-link", daemon=True)
    thread.start()
    return thread


def _link() -> None:
    spec = importlib.util.find_spec("torch")
    if spec is None or not spec.submodule_search_locations:
        return
    library = Path(spec.submodule_search_locations[0]) / "lib" / "libtorch_python.so"
    if not sys.platform.startswith("linux") or not library.is_file():
        return
    # A call through ctypes lets the interpreter go; `ctypes.CDLL(path)` would hold it.
    dlopen = ctypes.CDLL(None).dlopen
    dlopen.argtypes, dlopen.restype = (ctypes.c_char_p, ctypes.c_int), ctypes.c_void_p
    dlopen(os.fsencode(library), os.RTLD_NOW | os.RTLD_LOCAL)
