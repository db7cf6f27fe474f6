"""The pages of jobs and dead letters in a real browser, with a real service."""

from pathlib import Path

from playwright.async_api import Page, expect
from tests.dashboard.jobs_app import MARKUP, serve_jobs_app, submit_job


async def test_jobs_appear_and_change_without_a_reload(page: Page, tmp_path: Path) -> None:
    """A user who submits a job from the documentation wants to see it arrive and finish without a reload."""
    async with serve_jobs_app(tmp_path, page) as served:
        await page.goto(f"{served.url}/#/jobs")
        await expect(page.locator(".empty")).to_contain_text("curl")
        id_ = await submit_job(served, "add", a=1)
        row = page.locator(f"tr[data-row='{id_}']")
        await expect(row).to_contain_text("ready")
        await served.settle()
        await expect(row).to_contain_text("done")


async def test_rows_do_not_move_while_jobs_are_selected(page: Page, tmp_path: Path) -> None:
    """A click must hit the intended row: while jobs are selected, new jobs wait behind a button."""
    async with serve_jobs_app(tmp_path, page) as served:
        first = await submit_job(served, "add", a=1)
        await page.goto(f"{served.url}/#/jobs")
        await page.locator("tr[data-row] input").check()
        await submit_job(served, "add", a=2)
        await expect(page.locator(".news")).to_have_text("Show 1 new job")
        assert await ids_in(page) == [first]
        await page.locator(".news").click()
        await expect(page.locator("tr[data-row]")).to_have_count(2)
        assert (await ids_in(page))[1] == first


async def test_many_jobs_are_retried_after_a_confirmation_with_their_number(page: Page, tmp_path: Path) -> None:
    """Jobs that cannot be retried are left alone, and the confirmation says so."""
    async with serve_jobs_app(tmp_path, page) as served:
        for text in ("one", "two"):
            await submit_job(served, "broken", text=text)
        await submit_job(served, "add", a=1)
        await served.settle()
        await page.goto(f"{served.url}/#/jobs")
        await page.get_by_label("Select all shown jobs").check()
        await page.get_by_role("button", name="Retry 2").click()
        await expect(page.locator("dialog")).to_contain_text("Left alone")
        await page.locator("dialog button[type=submit]").click()
        await expect(page.locator("#toasts")).to_contain_text("2 jobs retried")
        await expect(page.locator("tr", has_text="ready")).to_have_count(2)


async def test_filters_are_in_the_address_and_survive_a_reload(page: Page, tmp_path: Path) -> None:
    """Users share the URL of what they see."""
    async with serve_jobs_app(tmp_path, page) as served:
        await submit_job(served, "broken")
        await submit_job(served, "add", a=1)
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
    async with serve_jobs_app(tmp_path, page) as served:
        items = [{"kind": "add", "arguments": {"a": number}} for number in range(60)]
        await served.client.post("/v1/jobs/bulk", json={"items": items})
        await page.goto(f"{served.url}/#/jobs")
        await expect(page.locator("tr[data-row]")).to_have_count(50)
        await page.get_by_role("button", name="Older").click()
        await expect(page.locator("tr[data-row]")).to_have_count(10)
        await submit_job(served, "add", a=1)
        await expect(page.locator(".tab", has_text="pending")).to_contain_text("61")
        await expect(page.locator("tr[data-row]")).to_have_count(10)
        await page.get_by_role("button", name="Newer").click()
        await expect(page.locator("tr[data-row]")).to_have_count(50)


async def test_an_id_opens_its_job_by_the_keyboard_alone(page: Page, tmp_path: Path) -> None:
    """Users without a mouse need to reach a job, too."""
    async with serve_jobs_app(tmp_path, page) as served:
        id_ = await submit_job(served, "add", a=1)
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
    """After a dialog, the focus returns: a user of a screen reader would be lost otherwise."""
    async with serve_jobs_app(tmp_path, page) as served:
        await submit_job(served, "add", a=1)
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
    """Errors are fixed one at a time: the jobs with other errors must stay."""
    async with serve_jobs_app(tmp_path, page) as served:
        await submit_job(served, "broken", text=MARKUP)
        await submit_job(served, "broken", text="two")
        await submit_job(served, "broken", text="late")
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
