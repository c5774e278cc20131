"""Run the Python blocks of a page, as a reader would paste them, in an empty folder: python quickstart.py README.md"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from pathlib import Path


def main() -> None:
    text = Path(sys.argv[1]).read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        names: dict[str, object] = {"__name__": "__main__"}
        for block in blocks:
            exec(compile(block, sys.argv[1], "exec"), names)
        os.chdir("/")
    sys.stdout.write(f"{len(blocks)} blocks ran\n")


if __name__ == "__main__":
    main()
