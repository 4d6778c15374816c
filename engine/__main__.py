# SPDX-License-Identifier: MIT OR Apache-2.0
"""`python -m engine COMMAND`: the headless commands without Qt."""

import sys

from engine.interrupt import end_on_interrupt

if __name__ == "__main__":
    end_on_interrupt()  # before anything large is read
    from engine.cli import main

    sys.exit(main())
