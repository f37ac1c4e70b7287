"""Ratios as bars, in an SVG: a panel for each shape."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def plot(panels: Mapping[str, Mapping[str, float]], path: Path) -> None:
    """Draw each panel's ratios by contender, on one logarithmic scale, if matplotlib is there."""
    try:
        import matplotlib
    except ImportError:
        print("\nno SVG: matplotlib is NOT INSTALLED")
        return
    matplotlib.use("svg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(panels), figsize=(12, 3.2), sharex=True)
    for axis, (title, ratios) in zip(axes, panels.items(), strict=True):
        names = [*ratios][::-1]
        colours = ["#b3541e" if name.startswith("anabranch") else "#8fa3ad" for name in names]
        axis.barh(names, [ratios[name] for name in names], color=colours)
        axis.axvline(1, color="black", linewidth=0.8)
        axis.set_xscale("log")
        axis.set_title(title)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    print(f"\nplot: {path}")
