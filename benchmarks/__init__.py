"""Benchmarks of speed and memory; programs that are compared run in the same run."""
