"""An app for tests that start separate processes."""

import logging

from leaseway import App

app = App()
log = logging.getLogger("shop")


@app.job
async def greet(name: str) -> str:
    log.warning("greeting")
    return f"hello {name}"


@app.job(attempts=1)
def break_down(secret: str) -> None:
    raise ValueError(secret)


if __name__ == "__main__":
    print(greet.submit_sync(name="Ada").id)
    print(break_down.submit_sync(secret="s3cret").id)
