# SPDX-License-Identifier: MIT OR Apache-2.0
"""`python -m engine COMMAND`: the headless commands without Qt."""

import sys

from engine.cli import main

if __name__ == "__main__":
    sys.exit(main())
