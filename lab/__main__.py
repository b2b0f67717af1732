"""The `iwl` command; `python -m lab` where no script was installed."""

from __future__ import annotations

import sys

#: A shell says it of what Ctrl-C ended.
INTERRUPTED = 130


def main() -> None:
    try:
        # Not above: it takes most of a second, and a Ctrl-C in that is one like any other.
        from lab.cli import main as iwl

        iwl()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
