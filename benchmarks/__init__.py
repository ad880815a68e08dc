"""Speed and memory as ratios: every benchmark compares in one run."""
