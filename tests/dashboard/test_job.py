"""The page of a job in a real browser, with a real service."""

from pathlib import Path

from playwright.async_api import Page, expect
from tests.dashboard.jobs_app import MARKUP, serve_jobs_app, submit_job

from leaseway import AesGcm
from leaseway.domain.encryption import Encryption


async def test_the_texts_of_a_job_are_never_markup(page: Page, tmp_path: Path) -> None:
    """Arguments, errors and tracebacks come from other parties: they must not become markup or run."""
    async with serve_jobs_app(tmp_path, page) as served:
        id_ = await submit_job(served, "broken", text=MARKUP)
        await served.settle()
        await page.goto(f"{served.url}/#/jobs/{id_}")
        await expect(page.locator(".error-message")).to_have_text(MARKUP)
        await expect(page.locator(".json").first).to_contain_text("<img src=x")
        await page.locator(".error summary").click()
        await expect(page.locator(".trace")).to_contain_text("ValueError")
        assert await page.locator("#main img").count() == 0
        assert await page.title() == "Job · leaseway"


async def test_an_encrypted_job_shows_the_id_of_its_key(page: Page, tmp_path: Path) -> None:
    """The service has no key. The page must say so instead of showing ciphertext."""
    async with serve_jobs_app(tmp_path, page) as served:
        encryption = Encryption(AesGcm({"2026-05": AesGcm.new_key()}))
        job = served.app.bind("broken", {"text": "the name"}).new(served.app.world.ids, encryption=encryption)
        await served.service.world.store.jobs.submit([job])
        await page.goto(f"{served.url}/#/jobs/{job.id}")
        await expect(page.locator("#main")).to_contain_text("encrypted (key 2026-05)")
        await expect(page.locator("#main")).not_to_contain_text("$encrypted")


async def test_a_job_is_watched_from_ready_to_done(page: Page, tmp_path: Path) -> None:
    """A page that shows an old state makes users submit the job again."""
    async with serve_jobs_app(tmp_path, page) as served:
        id_ = await submit_job(served, "add", a=41)
        await page.goto(f"{served.url}/#/jobs/{id_}")
        await expect(page.locator(".why-text")).to_contain_text("waits for a worker")
        await expect(page.locator(".why")).to_contain_text("leaseway work")
        await served.settle()
        await expect(page.locator(".job-title .chip")).to_have_text("done")
        await expect(page.locator(".timeline")).to_contain_text("in attempt 1 of")
        await expect(page.get_by_label("result", exact=True)).to_have_text("42")


async def test_expanded_parts_stay_expanded_when_the_job_changes(page: Page, tmp_path: Path) -> None:
    """A traceback that the user is reading must not collapse because the job was retried."""
    async with serve_jobs_app(tmp_path, page) as served:
        id_ = await submit_job(served, "broken", text="one")
        await served.settle()
        await page.goto(f"{served.url}/#/jobs/{id_}")
        await page.locator(".error summary").click()
        assert (await served.client.post(f"/v1/jobs/{id_}/retry")).status_code == 200
        await expect(page.locator(".job-title .chip")).to_have_text("ready")
        await served.settle()
        await expect(page.locator(".error")).to_have_count(2)
        await expect(page.locator(".error details[open]")).to_have_count(1)


async def test_a_job_is_retried_cancelled_and_discarded_from_its_page(page: Page, tmp_path: Path) -> None:
    """Irreversible actions are confirmed first; actions that the state does not allow are not offered."""
    async with serve_jobs_app(tmp_path, page) as served:
        id_ = await submit_job(served, "broken")
        await served.settle()
        await page.goto(f"{served.url}/#/jobs/{id_}")
        buttons = page.locator(".job-head .actions button")
        await expect(buttons).to_have_text(["Retry", "Discard"])
        await buttons.first.click()
        await expect(buttons).to_have_text(["Cancel"])
        await buttons.first.click()
        await page.locator("dialog button[type=submit]").click()
        await expect(page.locator(".job-title .chip")).to_have_text("cancelled")
        await buttons.last.click()
        await page.locator("dialog button[type=submit]").click()
        await page.wait_for_url("**/#/jobs")
        assert (await served.client.get(f"/v1/jobs/{id_}")).status_code == 404


async def test_a_job_that_is_not_there_leads_back(page: Page, tmp_path: Path) -> None:
    """Links to pruned jobs stay in chats and tickets."""
    async with serve_jobs_app(tmp_path, page) as served:
        await page.goto(f"{served.url}/#/jobs/01m7hpkezzg5vddjcv9v0j9999")
        await expect(page.locator(".empty")).to_contain_text("There is no such job")
        await page.get_by_role("link", name="All jobs").click()
        await expect(page.locator("h1")).to_have_text("Jobs")
