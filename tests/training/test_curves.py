from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import pytest

from prunus.errors import BadInput
from prunus.training import FitConfig, fit
from prunus.training.curves import lines_of, svg_plot, text_plot
from prunus.training.history import History, Record
from prunus.training.records import RunFolder
from support.training import digits, fc

HISTORY = History(Record(epoch, 10 * epoch, 1 / epoch, epoch / 5, None, epoch / 10, 1.0, 0.1) for epoch in range(1, 5))


def test_the_text_plot_places_ends_and_scales() -> None:
    rows = text_plot(lines_of(HISTORY), width=31, height=7).splitlines()
    assert rows[0].startswith("  0.800 |")
    assert rows[0].endswith("*")  # training accuracy .8 at the last epoch: top right
    assert rows[6].startswith("  0.100 |o")
    assert "* training accuracy   o test accuracy" in rows[-1]


def test_the_svg_is_xml_with_one_line_for_each_curve() -> None:
    root = ElementTree.fromstring(svg_plot(lines_of(HISTORY), 'a <title> & "more"'))
    assert len(root.findall(".//{*}polyline")) == 2
    assert len(root.findall(".//{*}polyline")[0].attrib["points"].split()) == 4


def test_loss_where_there_is_no_accuracy_and_nothing_where_there_is_nothing() -> None:
    real = History([Record(1, 1, 0.5, None, None, None, 0.1, 0.1)])
    assert set(lines_of(real)) == {"training loss"}
    assert text_plot(lines_of(real))
    assert text_plot(lines_of(History())) == ""
    ElementTree.fromstring(svg_plot(lines_of(History())))


def test_a_finished_folder_is_not_overwritten(tmp_path) -> None:
    folder = RunFolder(tmp_path)
    model = fc()
    history = fit(model, digits(64)[0], "1ep", FitConfig(folder=folder.checkpoints))
    folder.write({"model": "fc"}, {}, history, model)
    with pytest.raises(BadInput, match="already holds"):
        RunFolder(tmp_path)
    RunFolder(tmp_path, resume=True)
