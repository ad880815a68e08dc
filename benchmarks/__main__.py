"""``python -m benchmarks [NAME …] [--quick]`` runs the named benchmarks, or all."""

import argparse
import importlib
from pathlib import Path

NAMES = sorted(
    path.stem.removeprefix("bench_")
    for path in Path(__file__).parent.glob("bench_*.py")
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {NAMES}")
    parser.add_argument(
        "--quick", action="store_true", help="run the smallest sizes once"
    )
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(NAMES))
    if unknown:
        parser.error(f"no benchmark named {unknown[0]!r}; there are {NAMES}")
    for name in options.names or NAMES:
        print(f"\n== {name}")
        importlib.import_module(f"benchmarks.bench_{name}").main(quick=options.quick)


if __name__ == "__main__":
    main()
