"""The report in a real Chromium, opened from disk: no console error, tables that sort, figures, also on a phone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scale_cl.reports import collect, write_report
from tests.reports.made_results import everything, run_result

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
NASTY = "<script>window.broken = 1</script><img src=x onerror='window.broken = 1'>"

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="no browser here: apt-get install chromium chromium-driver",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium with a new profile."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="needs selenium, of the extra dev")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))  # a path: nothing is downloaded
    try:
        yield driver
    finally:
        driver.quit()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report with every table and figure, a gap, and a learner whose name is an attack."""
    directory = tmp_path_factory.mktemp("results")
    everything(directory)
    run_result(NASTY, level=70).write(directory / "nasty")
    (directory / "broken").mkdir()
    (directory / "broken" / "result.json").write_text("{")
    return write_report(collect(directory), directory / "out").page


def opened(browser: Any, page: Path, *, width: int = 1200, scheme: str = "light", media: str = "") -> None:
    """Show the page anew at this width, and forget what the console said before."""
    feature = {"name": "prefers-color-scheme", "value": scheme}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": media, "features": [feature]})
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get_log("browser")
    browser.get(page.as_uri())


def first_column(browser: Any, table: str) -> list[str]:
    script = "return [...document.querySelectorAll(arguments[0] + ' tbody tr')].map(r => r.cells[0].textContent)"
    return list(browser.execute_script(script, f"#digits-4-tasks table[data-table='{table}']"))


def click_heading(browser: Any, text: str) -> str:
    """Click a heading of the results table and say which order it now shows."""
    return str(
        browser.execute_script(
            "const head = [...document.querySelectorAll(\"#digits-4-tasks table[data-table='results'] thead th\")]"
            ".find(h => h.textContent.trim() === arguments[0]);"
            "head.querySelector('button').click(); return head.getAttribute('aria-sort')",
            text,
        )
    )


@pytest.mark.parametrize("width", [1200, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_loads_without_an_error_and_without_asking_for_anything(
    browser: Any, page: Path, width: int, scheme: str
) -> None:
    opened(browser, page, width=width, scheme=scheme)
    assert browser.title == f"Results: {page.parents[1].name}"
    assert browser.get_log("browser") == []
    assert browser.execute_script("return performance.getEntriesByType('resource').length") == 0


@pytest.mark.parametrize("width", [1200, 400])
def test_no_width_makes_the_page_scroll_sideways(browser: Any, page: Path, width: int) -> None:
    opened(browser, page, width=width)
    browser.execute_script("document.querySelectorAll('details').forEach(d => d.open = true)")
    wide, window = browser.execute_script("return [document.documentElement.scrollWidth, window.innerWidth]")
    assert window == width
    assert wide <= width


def test_a_click_on_a_heading_sorts_and_a_second_turns_it_round(browser: Any, page: Path) -> None:
    opened(browser, page)
    assert first_column(browser, "results") == ["finetune", "er", "ctn", "scale", "joint", NASTY]
    assert click_heading(browser, "ACC ↑") == "descending"
    assert first_column(browser, "results") == ["joint", "scale", "ctn", "er", NASTY, "finetune"]
    assert click_heading(browser, "ACC ↑") == "ascending"
    assert first_column(browser, "results") == ["finetune", NASTY, "er", "ctn", "scale", "joint"]
    assert click_heading(browser, "Learner") == "ascending"
    assert first_column(browser, "results")[1:] == ["ctn", "er", "finetune", "joint", "scale"]


def test_what_has_no_value_stays_at_the_bottom_either_way(browser: Any, page: Path) -> None:
    opened(browser, page)
    for _ in range(2):
        click_heading(browser, "FM ↓")
        assert first_column(browser, "results")[-1] == "joint"


@pytest.mark.parametrize("width", [1200, 400])
def test_the_figures_are_there_and_of_a_size_to_read(browser: Any, page: Path, width: int) -> None:
    opened(browser, page, width=width)
    boxes = browser.execute_script(
        "return [...document.querySelectorAll('#digits-4-tasks figure')].map(f => {"
        "const b = f.querySelector(':scope > svg').getBoundingClientRect();"
        "return [f.dataset.figure, b.width, b.height, f.querySelectorAll('[data-tip]').length]})"
    )
    assert [box[0] for box in boxes] == ["accuracy", "forgetting", "memory", "time", "sensitivity", *["matrix"] * 5]
    assert all(box[1] > 200 and box[2] > 150 and box[3] > 3 for box in boxes)


def test_values_show_on_hover(browser: Any, page: Path) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.support.wait import WebDriverWait

    opened(browser, page)
    point = browser.find_element("css selector", "#pmnist-20-tasks figure[data-figure='accuracy'] .point:last-of-type")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", point)
    tip = browser.find_element("id", "tip")

    def shown(_: object) -> bool:  # scrolling hides it, and may still be going on
        ActionChains(browser).move_to_element(point).move_by_offset(1, 0).perform()
        return bool(tip.is_displayed())

    WebDriverWait(browser, 20).until(shown)
    assert tip.text == "scale, task 20: 80.98 ± 0.50"


def test_a_number_leads_to_what_made_it(browser: Any, page: Path) -> None:
    opened(browser, page)
    browser.execute_script("document.querySelector(\"#pmnist-20-tasks table[data-table='results'] td a\").click()")
    target = browser.find_element("css selector", ".source:target")
    assert "pmnist/result.json" in target.text
    assert "scale-cl run --stream digits" in target.text


def test_a_name_that_is_an_attack_is_shown_as_text(browser: Any, page: Path) -> None:
    opened(browser, page)
    assert NASTY in first_column(browser, "results")
    assert browser.execute_script("return [window.broken ?? null, document.images.length]") == [None, 0]


def test_the_page_follows_the_colour_scheme_and_prints_on_white(browser: Any, page: Path) -> None:
    colours = {}
    for scheme, media in (("light", ""), ("dark", ""), ("dark", "print")):
        opened(browser, page, scheme=scheme, media=media)
        colours[scheme, media] = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert colours["light", ""] == "rgb(251, 251, 250)"
    assert colours["dark", ""] == "rgb(20, 23, 26)"
    assert colours["dark", "print"] == "rgb(255, 255, 255)"
    assert not browser.find_element("css selector", "nav").is_displayed()


def test_a_gap_is_said_at_the_top(browser: Any, page: Path) -> None:
    opened(browser, page)
    assert "broken/result.json is damaged: it is not JSON" in browser.find_element("id", "gaps").text
