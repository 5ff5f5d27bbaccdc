"""Charts are well-formed and hold what they are given."""

from __future__ import annotations

import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

from prunus.charts import Chart, lines_by, write_charts
from prunus.errors import BadInput

SVG = "{http://www.w3.org/2000/svg}"


def chart(**options: object) -> Chart:
    lines = {"a < b": [(1.0, 2.0, 0.5), (10.0, 3.0, 0.1)], "c": [(1.0, 1.0), (10.0, math.inf), (100.0, 4.0)]}
    return Chart("Title & more", "x", "y", lines, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("log_x", [False, True])
@pytest.mark.parametrize("log_y", [False, True])
def test_svg(log_x: bool, log_y: bool) -> None:
    root = ElementTree.fromstring(chart(log_x=log_x, log_y=log_y, levels={"limit": 2.5}).svg())
    assert len(root.findall(f"{SVG}circle")) == 4  # the infinite point is left out
    for circle in root.findall(f"{SVG}circle"):
        assert 0 <= float(circle.get("cx", "-1")) <= 640
        assert 0 <= float(circle.get("cy", "-1")) <= 380
    texts = [text.text for text in root.findall(f"{SVG}text")]
    assert {"Title & more", "a < b", "c", "limit", "x", "y"} <= set(texts)


def test_files(tmp_path: Path) -> None:
    one = write_charts(tmp_path / "one.svg", [chart()])
    two = write_charts(tmp_path / "two.svg", [chart(), chart()])
    assert len(ElementTree.parse(two).getroot().findall(f"{SVG}svg")) == 2
    assert ElementTree.parse(one).getroot().tag == f"{SVG}svg"
    page = write_charts(tmp_path / "page.html", [chart(), chart()], "Kernels").read_text()
    assert page.count("<figure>") == 2
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    with pytest.raises(BadInput, match="svg"):
        write_charts(tmp_path / "one.png", [chart()])
    with pytest.raises(BadInput, match="nothing to draw"):
        Chart("empty", "x", "y", {"a": [(0.0, math.nan)]}).svg()


def test_lines() -> None:
    rows = [{"w": 1, "x": 2, "y": 5.0}, {"w": 1, "x": 1, "y": 4.0}, {"w": 2, "x": 1, "y": None}]
    assert lines_by(rows, "w", "x", "y") == {"w 1": [(1.0, 4.0), (2.0, 5.0)]}


def test_categories_dots_and_dashes() -> None:
    lines = {"a": [(0.0, 1.0), (1.0, 2.0)], "b": [(0.0, 3.0), (1.0, 4.0)]}
    root = ElementTree.fromstring(Chart("t", "", "y", lines, x_names=("one", "two"), dots=("a",), dashed=("b",)).svg())
    assert {"one", "two"} <= {text.text for text in root.findall(f"{SVG}text")}
    (drawn,) = root.findall(f"{SVG}polyline")
    assert drawn.get("stroke-dasharray")


def test_steps_of_ticks_can_be_given() -> None:
    root = ElementTree.fromstring(Chart("t", "x", "y", {"a": [(0.0, 1.0), (180.0, 2.0)]}, x_step=30).svg())
    assert {"0", "30", "60", "90", "120", "150", "180"} <= {text.text for text in root.findall(f"{SVG}text")}


def test_one_value_on_a_logarithmic_axis() -> None:
    assert Chart("t", "x", "y", {"a": [(3.0, 3.0)]}, log_x=True, log_y=True).svg()


def test_the_package_runs_without_the_python_plotly() -> None:
    import tomllib

    root = Path(__file__).parents[1]
    project = tomllib.loads((root / "pyproject.toml").read_text("utf8"))["project"]
    assert not [line for line in project["dependencies"] if "plotly" in line]
    assert not [file for file in (root / "src").rglob("*.py") if "import plotly" in file.read_text("utf8")]
