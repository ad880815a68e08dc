"""The live page in headless Chromium: milliseconds of computation and drawing a frame.

Thirty runs with the theory beside them, at each system's own settings and at its
largest prompts. The budget is 4 ms of computation a frame.
"""

from tests.browser import opened

from eigenheads.live import live_page

CASES = {
    "location, d = 80": "system=location",
    "location, d = 10⁹, 200 tokens, batch 100": (
        "system=location&d=1000000000&tokens=200&batch=100&start=overlap"
    ),
    "signal, d = 10⁴": "system=signal",
    "signal, d = 10⁹, 10 000 tokens": "system=signal&d=1000000000&tokens=10000",
}


def main(quick: bool = False) -> None:
    frames = 5 if quick else 300
    print("live page, 30 runs, headless Chromium without a graphics card")
    with opened() as browser:
        browser.look(width=1400, height=900)
        for name, parameters in CASES.items():
            browser.open(f"{live_page().as_uri()}#updates=1000000&{parameters}")
            browser.wait(f"EH.page.bench.compute.length > {frames}", seconds=60)
            steps = browser.run(
                "EH.page.session.at.reduce((sum, x) => sum + x, 0)"
                " / EH.page.bench.compute.reduce((sum, x) => sum + x, 0)"
            )
            print(f"  {name}: {browser.run('EH.page.measured()')}")
            print(f"    {1e3 / steps:.2f} µs a step of one run")


if __name__ == "__main__":
    main()
