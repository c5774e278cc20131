"""The page on what a prediction is worth runs as it stands, and what it says of flats and houses is true."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "examples" / "uncertainty.md"


def test_the_page_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib.pyplot").switch_backend("agg")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    told = []
    for block in blocks:
        exec(block, names)
        told.append(capsys.readouterr().out)
    noise, loaded = told[1].splitlines()
    assert 40.0 < float(re.findall(r"[\d.]+", noise)[0]) < 48.0
    assert loaded == "True"
    # one promise for all rows, then one for flats and one for houses
    assert float(told[3].split()[1]) == pytest.approx(0.9, abs=0.03)
    flats, houses = map(float, re.findall(r"0\.\d+|1\.0+", told[5]))
    assert (flats > 0.95, houses < 0.85) == (True, True)
    for share in map(float, re.findall(r"0\.\d+", told[6])):
        assert share == pytest.approx(0.9, abs=0.04)
    # quantiles have widths of their own for flats and houses, and counts their exposure
    kept, narrow, wide = map(float, re.findall(r"\d+\.?\d*", told[7]))
    assert kept == pytest.approx(0.9, abs=0.04)
    assert wide > 2.0 * narrow
    assert float(told[8].split()[1]) == pytest.approx(0.9, abs=0.04)
    assert float(told[9].split()[1].rstrip(",")) == pytest.approx(0.95, abs=0.035)
    assert (tmp_path / "coverage.png").read_bytes().startswith(b"\x89PNG")
    assert float(re.findall(r"0\.\d+", told[10])[0]) < 0.05
