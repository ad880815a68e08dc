"""Numerical routines that are at least 1.5 times faster than the library function.

The first line of each module names the library function that it equals and the factor:
processor time on one core, on the sizes that this package uses. A routine below a
factor of 1.5 is to be deleted for the library's function.
"""
