"""Draw the figure of the guide from the probe.json of `eigenheads probe`."""

import sys
from pathlib import Path

from eigenheads.adapters import ModelProbe
from eigenheads.report import statistic_figure

HERE = Path(__file__).parent

if __name__ == "__main__":
    probe = ModelProbe.load(sys.argv[1])
    svg = statistic_figure(probe, "qk_covariance_cosine")
    (HERE / "question_a_head.svg").write_bytes(svg)
