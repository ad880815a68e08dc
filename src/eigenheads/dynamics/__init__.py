"""Stochastic training, simulated exactly in any dimension."""

__all__: list[str] = []
