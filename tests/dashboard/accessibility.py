"""Accessibility problems that axe finds, in both themes; and pages that are wider than the screen."""

from typing import Any, Literal

from playwright.async_api import Page

THEMES: list[Literal["light", "dark"]] = ["light", "dark"]
SERIOUS = """async (theme) => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  if (found.passes.length < 5) throw new Error("axe has not looked");
  const serious = found.violations.filter(({impact}) => impact === "serious" || impact === "critical");
  return serious.map(({id, nodes}) => [theme, id, ...nodes.map((node) => `${node.html} ${node.failureSummary}`)]);
}"""

AT_WIDTH = """(width) => new Promise((done) => {
  const drawn = () => requestAnimationFrame(() => requestAnimationFrame(done));
  const look = () => innerWidth === width ? drawn() : requestAnimationFrame(look);
  look();
})"""


async def resize(page: Page, width: int) -> None:
    """Waits until the page is rendered: charts receive their new width at the end of a frame."""
    await page.set_viewport_size({"width": width, "height": 844})
    await page.evaluate(AT_WIDTH, width)


async def accessibility_problems(page: Page, axe: str) -> list[Any]:
    """Empty: no serious problems. `axe` is its source code."""
    if await page.evaluate("() => typeof axe") == "undefined":
        await page.evaluate(axe)
    found: list[Any] = []
    for theme in THEMES:
        await page.emulate_media(color_scheme=theme)
        found += await page.evaluate(SERIOUS, theme)
    return found
