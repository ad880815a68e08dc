"""Draw the figure of the guide: run the example, keep its figure as SVG."""

import runpy
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
mpl.rcParams["svg.hashsalt"] = "robust_pca"  # the same bytes every time

HERE = Path(__file__).parent
EXAMPLE = HERE.parents[2] / "examples" / "plot_robust_pca.py"

if __name__ == "__main__":
    names = runpy.run_path(str(EXAMPLE))
    names["figure"].savefig(HERE / "robust_pca.svg", metadata={"Date": None})
    print(names["errors"])
