"""Draw the figure of the guide: run the example, keep its first figure as SVG."""

import runpy
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "find_the_token"  # the same bytes every time

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[2] / "examples" / "plot_find_the_token.py"

if __name__ == "__main__":
    names = runpy.run_path(str(EXAMPLE))
    names["figure"].savefig(HERE / "find_the_token.svg", metadata={"Date": None})
