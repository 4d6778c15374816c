# SPDX-License-Identifier: MIT OR Apache-2.0
"""`python -m engine COMMAND`: the headless commands without Qt."""

import sys


def _run() -> int:
    try:
        from engine.cli import main

        return main()
    except KeyboardInterrupt:  # before a command looks for it, while modules are read
        return 130


if __name__ == "__main__":
    sys.exit(_run())
