"""Draws the learning curves of tickets.md: python docs/guide/plot_tickets.py"""

from __future__ import annotations

from pathlib import Path

from prunus.files import replace_file
from prunus.models import make
from prunus.training import FitConfig, find_ticket, fit
from prunus.training._reproduce_tickets import digits
from prunus.training.curves import svg_plot

FOLDER = Path(__file__).resolve().parent


def main() -> None:
    train, test = digits()
    lines: dict[str, list[tuple[float, float]]] = {}
    for name in ("SGD", "iterand", "edge-popup"):
        init = "kaiming_uniform"
        model = make("fc:64-16-16-10", init=init, seed=1, bias=False)
        if name == "SGD":
            history = fit(model, train, "60ep", FitConfig(lr=0.03, seed=1), test=test)
        else:
            options = {"period": 7, "rate": 0.1, "config": FitConfig(lr=0.3, seed=1)}
            history = find_ticket(model, train, name, 0.5, length="60ep", test=test, **options).history
        lines[name] = [(record.epoch, record.test_accuracy or 0.0) for record in history]
        print(name, history[-1])
    title = "digits, 64-16-16-10, Kaiming uniform: test accuracy"
    replace_file(FOLDER / "ticket-curves.svg", svg_plot(lines, title))


if __name__ == "__main__":
    main()
