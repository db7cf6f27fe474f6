"""The page of jobs and that of the dead letters, in a real browser over a real service."""

from pathlib import Path

from playwright.async_api import Page, expect
from tests.dashboard.shop import MARKUP, shop, submitted


async def test_jobs_come_in_and_change_while_somebody_watches(page: Page, tmp_path: Path) -> None:
    """Whoever submits a job from the docs wants to see it come and finish, without loading anything again."""
    async with shop(tmp_path, page) as served:
        await page.goto(f"{served.url}/#/jobs")
        await expect(page.locator(".empty")).to_contain_text("curl")
        id_ = await submitted(served, "add", a=1)
        row = page.locator(f"tr[data-row='{id_}']")
        await expect(row).to_contain_text("ready")
        await served.settle()
        await expect(row).to_contain_text("done")


async def test_rows_do_not_jump_under_a_hand(page: Page, tmp_path: Path) -> None:
    """A click must hit the row that was aimed at: with something selected, new jobs wait behind a button."""
    async with shop(tmp_path, page) as served:
        first = await submitted(served, "add", a=1)
        await page.goto(f"{served.url}/#/jobs")
        await page.locator("tr[data-row] input").check()
        await submitted(served, "add", a=2)
        await expect(page.locator(".news")).to_have_text("Show 1 new job")
        assert await ids_in(page) == [first]
        await page.locator(".news").click()
        await expect(page.locator("tr[data-row]")).to_have_count(2)
        assert (await ids_in(page))[1] == first


async def test_many_are_retried_at_once_after_a_question_with_their_number(page: Page, tmp_path: Path) -> None:
    """Those that cannot be retried are left alone, and said so before."""
    async with shop(tmp_path, page) as served:
        for text in ("one", "two"):
            await submitted(served, "broken", text=text)
        await submitted(served, "add", a=1)
        await served.settle()
        await page.goto(f"{served.url}/#/jobs")
        await page.get_by_label("Select all that are shown").check()
        await page.get_by_role("button", name="Retry 2").click()
        await expect(page.locator("dialog")).to_contain_text("Left alone")
        await page.locator("dialog button[type=submit]").click()
        await expect(page.locator("#toasts")).to_contain_text("2 jobs retried")
        await expect(page.locator("tr", has_text="ready")).to_have_count(2)


async def test_filters_are_in_the_address_and_survive_a_reload(page: Page, tmp_path: Path) -> None:
    """Users share the URL of what they see."""
    async with shop(tmp_path, page) as served:
        await submitted(served, "broken")
        await submitted(served, "add", a=1)
        await page.goto(f"{served.url}/#/jobs")
        await expect(page.locator("tr[data-row]")).to_have_count(2)
        await page.get_by_label("Kind", exact=True).fill("broken")
        await expect(page.locator("tr[data-row]")).to_have_count(1)
        await expect(page).to_have_url(f"{served.url}/#/jobs?kind=broken")
        await page.reload()
        await expect(page.locator("tr[data-row]")).to_have_count(1)
        await page.get_by_role("button", name="Clear").click()
        await expect(page.locator("tr[data-row]")).to_have_count(2)


async def test_older_jobs_are_a_page_away_and_new_ones_do_not_come_in_there(page: Page, tmp_path: Path) -> None:
    """Rows that move while a user selects them would lead to the wrong job."""
    async with shop(tmp_path, page) as served:
        items = [{"kind": "add", "arguments": {"a": number}} for number in range(60)]
        await served.client.post("/v1/jobs/bulk", json={"items": items})
        await page.goto(f"{served.url}/#/jobs")
        await expect(page.locator("tr[data-row]")).to_have_count(50)
        await page.get_by_role("button", name="Older").click()
        await expect(page.locator("tr[data-row]")).to_have_count(10)
        await submitted(served, "add", a=1)
        await expect(page.locator(".tab", has_text="pending")).to_contain_text("61")
        await expect(page.locator("tr[data-row]")).to_have_count(10)
        await page.get_by_role("button", name="Newer").click()
        await expect(page.locator("tr[data-row]")).to_have_count(50)


async def test_an_id_opens_its_job_by_the_keyboard_alone(page: Page, tmp_path: Path) -> None:
    """Users without a mouse need to reach a job, too."""
    async with shop(tmp_path, page) as served:
        id_ = await submitted(served, "add", a=1)
        await page.goto(f"{served.url}/#/jobs")
        await expect(page.locator("tr[data-row]")).to_have_count(1)
        await page.keyboard.press("/")
        await page.keyboard.type("not an id")
        await page.keyboard.press("Enter")
        await expect(page.locator(".filters .wrong")).to_contain_text("26")
        await page.locator("[data-search]").fill(id_)
        await page.keyboard.press("Enter")
        await expect(page.locator("h1")).to_have_text("add")


async def test_a_row_is_opened_and_its_job_ended_without_a_mouse(page: Page, tmp_path: Path) -> None:
    """After a question the focus is where it was: who cannot see the page would be lost in it."""
    async with shop(tmp_path, page) as served:
        await submitted(served, "add", a=1)
        await page.goto(f"{served.url}/#/jobs")
        await expect(page.locator("tr[data-row]")).to_have_count(1)
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await expect(page.locator("h1")).to_have_text("add")
        cancel = page.locator(".job-head .actions button", has_text="Cancel")
        await cancel.focus()
        await page.keyboard.press("Enter")
        await expect(page.locator("dialog[open] :focus")).to_have_count(1)
        await page.keyboard.press("Escape")
        await expect(cancel).to_be_focused()
        await page.keyboard.press("Enter")
        await page.locator("dialog[open] button[type=submit]").press("Enter")
        await expect(page.locator(".job-title .chip")).to_have_text("cancelled")


async def test_dead_letters_are_grouped_and_a_group_is_retried_alone(page: Page, tmp_path: Path) -> None:
    """One cause is mended at a time: the jobs of another error must stay where they are."""
    async with shop(tmp_path, page) as served:
        await submitted(served, "broken", text=MARKUP)
        await submitted(served, "broken", text="two")
        await submitted(served, "broken", text="late")
        await served.settle()
        await page.goto(f"{served.url}/#/dead")
        rows = page.locator("tr[data-row]")
        await expect(rows).to_have_count(2)
        await expect(rows.first).to_contain_text("ValueError")
        await page.get_by_label("Retry all TimeoutError of broken").click()
        await expect(page.locator("dialog")).to_contain_text("1 job")
        await page.locator("dialog button[type=submit]").click()
        await expect(rows).to_have_count(1)
        left = (await served.client.get("/v1/jobs", params={"state": "failed"})).json()["items"]
        assert [job["last_error_code"] for job in left] == ["ValueError", "ValueError"]


async def ids_in(page: Page) -> list[str | None]:
    return [await row.get_attribute("data-row") for row in await page.locator("tr[data-row]").all()]
