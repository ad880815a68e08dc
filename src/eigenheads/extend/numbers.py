"""Numerical parts of packages that build on this one."""

from eigenheads._compile import njit
from eigenheads.functional._pursuit import pursuit_steps

__all__ = ["njit", "pursuit_steps"]
