"""Size limits. Larger requests raise a ValueError instead of a MemoryError."""

# Numbers recorded along a run: 4 GiB of doubles.
MAX_RECORDED = 2**29
# Numbers held to work with: 2 GiB of doubles.
MAX_WORK = 2**28
# Numbers of one sample that is asked for as an array: 32 GiB of doubles.
MAX_SAMPLE = 2**32
# A month at a nanosecond a step; and far within the integers that float64 holds.
MAX_STEPS = 10**15
# Squares and products of four such numbers stay within float64.
LARGEST = 1e50
# Runs of one simulation.
MAX_RUNS = 10**6
# Up to here d - 4 and d / 2 are exact in double precision.
MAX_DIMENSION = 10**15
