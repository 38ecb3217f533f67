"""That nothing is lost where the stylesheet is made small: a browser reads the same rules in it as
in the files that it is made of."""

from playwright.sync_api import Page

from tests.support.stack import ROOT

STATIC = ROOT / "static"
FIRST = ["vendor/pico.min.css", "theme.css", "console.css"]
RULES = """text => {
  const sheet = new CSSStyleSheet();
  sheet.replaceSync(text);
  // What a custom property is made of is kept as it was written.
  return Array.from(sheet.cssRules, rule => rule.cssText.replace(/, /g, ","));
}"""


def test_the_small_stylesheet_says_what_its_sources_say(page: Page) -> None:
    page.goto("/sign-in")
    address = page.locator("link[rel=stylesheet]").get_attribute("href")
    small = page.request.get(str(address)).text()
    rest = sorted(path.name for path in STATIC.glob("*.css") if path.name not in FIRST)
    sources = [page.evaluate(RULES, (STATIC / name).read_text()) for name in [*FIRST, *rest]]
    assert page.evaluate(RULES, small) == [rule for rules in sources for rule in rules]
    # The licence of what is another's stays with it.
    assert "Pico CSS" in small[:200]
    assert "Licensed under MIT" in small[:200]
