"""What hinders people on a page, as axe sees it, in the light and in the dark."""

from typing import Any, Literal

from playwright.async_api import Page

THEMES: list[Literal["light", "dark"]] = ["light", "dark"]
SERIOUS = """async (theme) => {
  const found = await axe.run(document, {resultTypes: ["violations"]});
  if (found.passes.length < 5) throw new Error("axe has not looked");
  const serious = found.violations.filter(({impact}) => impact === "serious" || impact === "critical");
  return serious.map(({id, nodes}) => [theme, id, ...nodes.map((node) => `${node.html} ${node.failureSummary}`)]);
}"""


async def hindrances(page: Page, axe: str) -> list[Any]:
    """Nothing serious, if empty. `axe` is the program."""
    if await page.evaluate("() => typeof axe") == "undefined":
        await page.evaluate(axe)
    found: list[Any] = []
    for theme in THEMES:
        await page.emulate_media(color_scheme=theme)
        found += await page.evaluate(SERIOUS, theme)
    return found
