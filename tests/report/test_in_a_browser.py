"""The report in headless Chromium: phone and desktop, light and dark."""

import re
import shutil
import subprocess

import pytest

from eigenheads.experiments import reproduce
from eigenheads.report import write_report

pytestmark = pytest.mark.browser

QUIET = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    "--enable-logging=stderr",
    "--virtual-time-budget=2000",
]
# Run inside an iframe of the wanted width, since windows have a smallest one.
FRAME = """<!doctype html><title>frame</title><body style="margin:0">
<iframe id="f" src="report.html" style="width:{width}px;height:900px;border:0"></iframe>
<script>
document.getElementById("f").onload = (event) => {{
  const page = event.target.contentDocument, root = page.documentElement;
  const style = event.target.contentWindow.getComputedStyle(page.body);
  const figure = page.querySelector("figure svg").getBoundingClientRect();
  document.body.dataset.seen = JSON.stringify({{
    overflow: root.scrollWidth - event.target.clientWidth,
    ground: style.backgroundColor, ink: style.color, figure: figure.width,
    figures: page.querySelectorAll("figure svg").length,
    requests: event.target.contentWindow.performance.getEntriesByType("resource")
      .filter((entry) => !entry.name.startsWith("data:")).length }});
}};
</script>"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    root = tmp_path_factory.mktemp("browser")
    reproduce(["marion2025/fig5", "marion2025/bayes"], preset="smoke", out=root)
    return write_report(root)


def look(report, tmp_path, *, width, dark):
    import json

    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    assert browser, "Chromium is not installed. Run `apt-get install chromium`."
    frame = report.parent / f"frame{width}.html"
    frame.write_text(FRAME.format(width=width))
    scheme = f"--blink-settings=preferredColorScheme={0 if dark else 1}"
    arguments = [
        *QUIET,
        scheme,
        f"--user-data-dir={tmp_path}",
        "--window-size=1400,900",
    ]
    arguments += ["--allow-file-access-from-files", "--dump-dom", f"file://{frame}"]
    shown = subprocess.run(
        [browser, *arguments], capture_output=True, text=True, timeout=120, check=True
    )
    seen = re.search(r"data-seen=\"([^\"]+)\"", shown.stdout)
    assert seen, shown.stderr
    console = [line for line in shown.stderr.splitlines() if "CONSOLE" in line]
    return json.loads(seen.group(1).replace("&quot;", '"')), console


def brightness(color):
    red, green, blue = (int(part) for part in re.findall(r"\d+", color)[:3])
    return (red + green + blue) / 3


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_reads_well_at_any_width_and_scheme(report, tmp_path, width, dark):
    seen, console = look(report, tmp_path, width=width, dark=dark)
    assert console == []
    assert seen["figures"] == 2
    assert seen["requests"] == 0
    assert seen["overflow"] <= 0
    # On a phone a figure keeps a readable width and scrolls inside its frame.
    assert seen["figure"] >= max(600, 0.7 * min(width, 992))
    contrast = brightness(seen["ground"]) - brightness(seen["ink"])
    assert contrast < -150 if dark else contrast > 150
