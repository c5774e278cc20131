"""`python -m dkl` is the command `dkl`."""

from __future__ import annotations

from dkl.cli.app import main

if __name__ == "__main__":
    main()
