"""The manual in a real Chromium, opened from disk: search works, no network is asked, a phone shows it."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DRIVER = shutil.which("chromedriver")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)
PHONE = 360

pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="no browser here: apt-get install chromium chromium-driver",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium with a new profile, which writes down what it loads and what pages complain of."""
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))  # a path: nothing is downloaded
    try:
        yield driver
    finally:
        driver.quit()


def shown(browser: Any, page: Path, width: int = 1200) -> None:
    size = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())


def loaded(browser: Any) -> list[str]:
    """Addresses of all that was asked for since the last time."""
    events = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]


def test_pages_load_from_disk_alone_and_fit_a_phone(browser: Any, site: Path) -> None:
    pages = [site / f"{name}.html" for name in ("index", "concepts", "own-data", "own-method", "compare", "results")]
    pages += [site / f"{name}.html" for name in ("architecture", "equations", "glossary")]
    pages += [site / "reference" / name for name in ("commands.html", "settings.html", "api/learners.html")]
    loaded(browser)
    for page in pages:
        shown(browser, page, width=PHONE)
        overflow = browser.execute_script("return document.documentElement.scrollWidth - window.innerWidth")
        assert overflow <= 0, f"{page.name} is {overflow} pixels wider than a phone"
        broken = browser.execute_script(
            "return [...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)"
        )
        assert broken == [], page.name
        complaints = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
        assert complaints == [], page.name
    addresses = loaded(browser)
    assert len(addresses) > len(pages)
    own = ("file:", "data:", "chrome:", "chrome-untrusted:")  # the last two: Chromium's own first page
    assert [address for address in addresses if not address.startswith(own)] == []


def test_search_works_on_a_page_that_is_opened_from_disk(browser: Any, site: Path) -> None:
    from selenium.webdriver.common.by import By

    shown(browser, site / "index.html")
    box = browser.find_element(By.CSS_SELECTOR, ".md-search__input")
    box.click()
    box.send_keys("forgetting")
    found: list[Any] = []
    until = time.monotonic() + 60
    while not found and time.monotonic() < until:
        time.sleep(0.2)
        found = browser.find_elements(By.CSS_SELECTOR, ".md-search-result__item a")
    targets = [link.get_attribute("href") for link in found]
    assert any("concepts.html" in str(target) for target in targets), targets
    assert [address for address in loaded(browser) if address.startswith("http")] == []
