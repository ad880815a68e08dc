"""Size limits. Larger requests raise a ValueError instead of a MemoryError."""

# Numbers recorded by a simulation: 4 GiB of doubles.
MAX_RECORDED = 2**29
# Numbers in working memory: 2 GiB of doubles.
MAX_WORK = 2**28
# Numbers in one sampled array: 32 GiB of doubles.
MAX_SAMPLE = 2**32
# Updates per run: ten days at a nanosecond per step, and exact in float64.
MAX_STEPS = 10**15
# Largest input: products of four such numbers do not overflow float64.
LARGEST = 1e50
# Runs per simulation.
MAX_RUNS = 10**6
# Largest dimension: d - 4 and d / 2 are exact in float64.
MAX_DIMENSION = 10**15
