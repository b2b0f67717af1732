"""`python -m lab`: the `iwl` command where no script was installed."""

from __future__ import annotations

from lab.cli import main

if __name__ == "__main__":
    main()
