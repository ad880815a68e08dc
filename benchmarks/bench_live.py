"""Processor time per frame of the live page, in headless Chromium.

Thirty runs with the theory beside them, at the default settings of each system and at
its largest prompts.
"""

import numpy as np
from tests.browser import Browser, opened

from eigenheads._typing import FloatArray
from eigenheads.live import live_page

CASES = {
    "location, d = 80": "system=location",
    "location, d = 10⁹, 200 tokens, batch 100": (
        "system=location&d=1000000000&tokens=200&batch=100&start=overlap"
    ),
    "location, softmax, d = 80": "system=location&head=softmax",
    "location, softmax, d = 10⁹, 200 tokens, batch 100": (
        "system=location&head=softmax&d=1000000000&tokens=200&batch=100&start=overlap"
    ),
    "two heads, d = 1000": "system=heads",
    "two heads, d = 10⁹, 100 tokens, batch 100": (
        "system=heads&d=1000000000&tokens=100&batch=100"
    ),
    "pca, d = 1000": "system=pca",
    "pca, d = 10⁹, 500 tokens, batch 100": (
        "system=pca&d=1000000000&tokens=500&batch=100"
    ),
    "signal, d = 10⁴": "system=signal",
    "signal, d = 10⁹, 10 000 tokens": "system=signal&d=1000000000&tokens=10000",
}


# The computation of one frame, as the page does it.
FRAME = """(() => {
  const deadline = performance.now() + BUDGET;
  if (session.isReady) session.advance(deadline);
  else session.prepare(deadline);
})()"""
DRAW = """(() => {
  const began = performance.now();
  draw();
  return performance.now() - began;
})()"""
WARM = 60  # frames: one second, in which the browser compiles the scripts


def processor_time(browser: Browser) -> float:
    """Return the milliseconds that the page's thread has computed so far.

    Frames that wait for a processor are not longer by this clock.
    """
    metrics = browser.send("Performance.getMetrics")["metrics"]
    (found,) = (one["value"] for one in metrics if one["name"] == "ThreadTime")
    return 1e3 * float(found)


def spent_by(browser: Browser, code: str, times: int) -> FloatArray:
    """Return the processor time of each of several evaluations."""
    clock = [processor_time(browser)]
    for _ in range(times):
        browser.run(code)
        clock.append(processor_time(browser))
    return np.diff(clock)


def measure(browser: Browser, parameters: str, frames: int) -> list[float]:
    """Return median and 99th percentile per frame, drawing (ms) and step (µs)."""
    browser.open(f"{live_page().as_uri()}#updates=1000000&paused=1&{parameters}")
    # An evaluation itself takes some time.
    empty = np.median(spent_by(browser, "0", 20))
    spent = spent_by(browser, FRAME, WARM + frames) - empty
    steps = browser.run("session.at.reduce((sum, x) => sum + x, 0)")
    drawing = np.min([browser.run(DRAW) for _ in range(9)])
    return [*np.quantile(spent[WARM:], [0.5, 0.99]), drawing, 1e3 * spent.sum() / steps]


def main(quick: bool = False) -> None:
    frames, rounds = (5, 1) if quick else (150, 3)
    print("live page, 30 runs, headless Chromium without a graphics card")
    with opened() as browser:
        browser.look(width=1400, height=900)
        browser.send("Performance.enable", timeDomain="threadTicks")
        # Other programs only add time, so take the minimum of interleaved rounds.
        seen = [
            [measure(browser, parameters, frames) for parameters in CASES.values()]
            for _ in range(rounds)
        ]
    for name, best in zip(CASES, np.min(seen, axis=0), strict=True):
        middle, most, drawing, step = best
        print(
            f"  {name}: {middle:.1f} ms (median), {most:.1f} ms (99 %) of computation"
            f" per frame; {drawing:.1f} ms of drawing; {step:.1f} µs per step"
        )


if __name__ == "__main__":
    main()
