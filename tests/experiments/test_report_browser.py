"""The report in a real browser: axe's rules in both colour schemes, no requests, no errors, the keyboard, 320 pixels.

Needs Debian's packages chromium and chromium-driver, or their like on the PATH; skips where they are not.
"""

import importlib.resources
import json
import shutil
import threading

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.keys import Keys

from experiments.report import cli, serve
from tests.experiments import episodes
from tests.experiments.synthetic_run import write_run, write_sweep

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        BROWSER is None or DRIVER is None,
        reason="no chromium and chromedriver here: apt-get install chromium chromium-driver",
    ),
]
SWITCHES = (
    "--headless --no-sandbox --disable-gpu --disable-quic --disable-dev-shm-usage --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)
OF_COLOURS = ("color-contrast", "link-in-text-block")  # another scheme is the same page in other colours
FOCUSABLE = "a[href], summary, input:not([type=radio]), input[type=radio]:checked, [tabindex='0']"
# What a reader reaches now: not what a closed <details> hides.
VISIBLE = f"[...document.querySelectorAll({json.dumps(FOCUSABLE)})].filter(x => x.checkVisibility())"


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    for switch in SWITCHES.split():
        options.add_argument(switch)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.set_script_timeout(600)  # axe takes its time on a busy machine
    yield driver
    driver.quit()


WRITERS = {
    "run": lambda folder: write_run(folder, steps=20),
    "sweep": lambda folder: write_sweep(folder, seeds=2, steps=20, waiting=1),
    "control": lambda folder: episodes.write_control_run(folder, seeds=3, length=5),
}


@pytest.fixture(scope="module", params=WRITERS)
def page(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    WRITERS[request.param](folder)
    return cli.write_report([folder])


def look_at(browser, url: str, *, dark: bool = False, width: int = 1200) -> None:
    """Opens a page as a reader with such a screen would, its parts unfolded: of runs like each other, the first."""
    scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": scheme})
    screen = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    for log in ("browser", "performance"):
        browser.get_log(log)  # what came before
    browser.get(url)
    alike = "#runs > details:nth-of-type(n+2), #completions > details:nth-of-type(n+2)"
    browser.execute_script(f"document.querySelectorAll('details').forEach(x => x.open = !x.matches('{alike}'))")


def requests_of(browser) -> list[str]:
    """The addresses that the browser asked for since the page was opened."""
    entries = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [e["params"]["request"]["url"] for e in entries if e["method"] == "Network.requestWillBeSent"]


def broken_rules(browser, *rules: str) -> list[str]:
    """axe-core's rules, or some of them, that the page breaks, each with the first place."""
    axe = importlib.resources.files("selenium_axe_python").joinpath("axe-core/axe.min.js").read_text(encoding="utf-8")
    browser.execute_script(axe)
    options = {"resultTypes": ["violations", "incomplete"]} | ({"runOnly": list(rules)} if rules else {})
    found = browser.execute_async_script("axe.run(arguments[0]).then(arguments[1])", options)
    assert {rule["id"] for kind in ("violations", "passes") for rule in found[kind]} >= set(rules[:1])
    failed = [rule["id"] for rule in found["incomplete"] if "error-occurred" in json.dumps(rule)]
    assert failed == []  # a rule that stumbles over the page has not held it to anything
    return [f"{rule['id']}: {rule['nodes'][0]['html'][:200]}" for rule in found["violations"]]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_axe_finds_nothing(browser, page, dark):
    look_at(browser, page.as_uri(), dark=dark)
    background = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (background == "rgb(20, 23, 27)") == dark
    assert broken_rules(browser, *(OF_COLOURS if dark else ())) == []


def test_axe_sees_what_is_wrong(browser, page):
    look_at(browser, page.as_uri())
    browser.execute_script("document.querySelectorAll('details, figure').forEach(x => x.remove())")  # quicker
    browser.execute_script("document.querySelector('h1').style.color = '#eee'; document.querySelector('input').id = ''")
    assert {rule.split(":")[0] for rule in broken_rules(browser)} >= {"color-contrast", "label"}


def test_it_asks_for_nothing_and_complains_of_nothing(browser, page):
    look_at(browser, page.as_uri())
    browser.execute_script("window.scrollTo(0, document.body.scrollHeight)")
    assert [url.split("#")[0] for url in requests_of(browser)] == [page.as_uri()]
    assert browser.get_log("browser") == []


def test_the_page_never_scrolls_sideways(browser, page):
    for width in (320, 720, 1200):
        look_at(browser, page.as_uri(), width=width)
        widths = "const root = document.documentElement; return [root.scrollWidth, root.clientWidth]"
        found, seen = browser.execute_script(widths)
        assert found == seen and seen >= width - 20, width  # but for the scroll bar


def test_the_keyboard_reaches_every_control_and_shows_where_it_is(browser, page):
    look_at(browser, page.as_uri())
    expected = browser.execute_script(f"return {VISIBLE}.length")
    body, reached = browser.find_element("tag name", "body"), []
    where = (
        "const x = document.activeElement, style = getComputedStyle(x), left = x.getBoundingClientRect().left;"
        f"return [{VISIBLE}.indexOf(x), style.outlineStyle, parseFloat(style.outlineWidth), left]"
    )
    for _ in range(expected):
        (body if not reached else browser.switch_to.active_element).send_keys(Keys.TAB)
        index, outline, width, left = browser.execute_script(where)
        assert outline != "none" and width >= 2 and left >= 0
        reached.append(index)
    assert reached == list(range(expected)) and expected > 10


def test_the_skip_link_goes_to_the_results(browser, page):
    look_at(browser, page.as_uri())
    browser.find_element("tag name", "body").send_keys(Keys.TAB)
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    assert browser.switch_to.active_element.get_attribute("id") == "main"


def test_the_controls_do_something(browser, page):
    look_at(browser, page.as_uri())
    if plays := browser.find_elements("css selector", ".play"):
        moving = "return document.getAnimations().map(x => x.playState + ' ' + x.effect.getComputedTiming().duration)"
        seconds = 1000 * 40 / 50 / 0.92
        assert browser.execute_script(moving) == [f"paused {seconds:.0f}"] * 2
        plays[0].send_keys(Keys.SPACE)
        assert browser.execute_script(moving) == [f"running {seconds:.0f}"] * 2
        return
    painted = "return getComputedStyle(document.querySelector('.tokens span:not(.masked)')).backgroundColor"
    before = browser.execute_script(painted)
    browser.find_element("css selector", ".as-entropy").send_keys(Keys.SPACE)
    assert browser.execute_script(painted) != before
    drawn = "x => getComputedStyle(x).display != 'none'"
    shown = f"return [...document.querySelectorAll('.arm1')].filter({drawn}).length"
    if boxes := browser.find_elements("id", "show-1"):
        assert browser.execute_script(shown) > 5
        boxes[0].send_keys(Keys.SPACE)
        assert browser.execute_script(shown) == 0


def test_the_live_page_follows_the_runs_and_keeps_the_readers_place(browser, tmp_path):
    write_sweep(tmp_path, seeds=1, steps=20)
    sweep = json.loads((tmp_path / "sweep.json").read_text())
    with serve.Server([tmp_path]) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/"
            look_at(browser, url)
            assert broken_rules(browser) == []
            browser.find_element("id", "show-1").send_keys(Keys.SPACE)
            folded = ("run-2", "completions-1")  # closed and open in the page as it is served
            browser.execute_script(f"for (const id of {list(folded)}) document.getElementById(id).open = false")
            browser.execute_async_script("refresh().then(arguments[0])")
            (tmp_path / "sweep.json").write_text(json.dumps(sweep | {"name": "after all"}))
            browser.execute_async_script("refresh().then(arguments[0])")
            assert browser.find_element("tag name", "h1").text == "after all"
            kept = ["#show-1').checked", "#run-2').open", "#completions-1').open", "#run-1').open"]
            kept = [browser.execute_script(f"return document.querySelector('{place}") for place in kept]
            assert kept == [False, False, False, True]
            assert {url.rsplit("/", 1)[0] for url in requests_of(browser)} == {url.rstrip("/")}
            assert browser.get_log("browser") == []
            (tmp_path / "sweep.json").write_text("{torn")
            browser.execute_async_script("refresh().then(arguments[0])")
            assert "damaged file" in browser.find_element("id", "live-state").text
            assert browser.find_element("tag name", "h1").text == "after all"
            late = {**sweep["points"][0], "arm": "a late arm"}  # its box needs a rule that the first page had not
            (tmp_path / "sweep.json").write_text(json.dumps(sweep | {"points": [late, *sweep["points"]]}))
            browser.execute_async_script("refresh().then(arguments[0])")
            ticked = "return [...document.querySelectorAll('.arms input')].map(x => x.checked)"
            assert browser.execute_script(ticked) == [True, True, False, True]  # the arm that was hidden, moved by one
            browser.find_element("id", "show-3").send_keys(Keys.SPACE)
            shown = "x => getComputedStyle(x).display != 'none'"
            assert browser.execute_script(f"return [...document.querySelectorAll('.arm3')].filter({shown}).length") == 0
        finally:
            server.shutdown()
            thread.join()
