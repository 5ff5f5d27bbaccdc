"""A study on one page: words first, then pictures, then every number.

    prunus.report.write_report(prunus.study.Store("runs/digits"), "digits.html")

`facts` gathers what was measured, `words` writes sentences, `svg` draws histograms, `page` joins them with the template
(`page.html`, `style.css`, `page.js`) and the plotting library (plotly.js, basic bundle, MIT) into one file that needs
no network.
"""

from __future__ import annotations

from prunus.report.page import render, write_report

__all__ = ["render", "write_report"]
