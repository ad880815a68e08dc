"""Draw the figure of the guide from the probe.npz of `eigenheads probe`."""

import sys
from pathlib import Path

from eigenheads.probes import ModelProbe
from eigenheads.report._probe import statistic_figure

HERE = Path(__file__).parent

if __name__ == "__main__":
    probe = ModelProbe.load(sys.argv[1])
    svg = statistic_figure(probe, "qk_covariance_cosine")
    (HERE / "probe_a_head.svg").write_bytes(svg)
