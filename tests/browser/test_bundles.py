"""Bundling the stylesheet loses nothing: a browser reads the same rules in it as in its
sources."""

from playwright.sync_api import Page

from tests.support.stack import ROOT

STATIC = ROOT / "static"
FIRST = ["vendor/pico.min.css", "theme.css", "console.css"]
RULES = """text => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(text);
  // Browsers keep the value of a custom property exactly as it was written, with its spaces.
  return Array.from(sheet.cssRules, rule => rule.cssText.replace(/, /g, ","));
}"""


def test_the_stylesheet_has_the_rules_of_its_sources(page: Page) -> None:
    page.goto("/sign-in")
    address = page.locator("link[rel=stylesheet]").get_attribute("href")
    small = page.request.get(str(address)).text()
    rest = sorted(path.name for path in STATIC.glob("*.css") if path.name not in FIRST)
    sources = [page.evaluate(RULES, (STATIC / name).read_text()) for name in [*FIRST, *rest]]
    assert page.evaluate(RULES, small) == [rule for rules in sources for rule in rules]
    # The licence of another project's code stays with that code.
    assert "Pico CSS" in small[:200]
    assert "Licensed under MIT" in small[:200]
