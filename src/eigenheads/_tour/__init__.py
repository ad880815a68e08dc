"""The first minutes with Eigenheads: a narrated tour that measures what it says."""

from eigenheads._tour._run import HEADLINES, run_tour

__all__ = ["HEADLINES", "run_tour"]
