"""Presets of providers: limits, prices and names of headers, each in a small data file with its source and date.

    from leaseway.providers import load

    openai = load("openai", model="gpt-5-mini", requests="500/minute", tokens="200k/minute")

    @app.job(limits=[openai.limit("requests"), openai.limit("tokens").cost(tokens_max)], budget=spend, cost_usd=0.01)
    async def ask(ctx: Context, text: str) -> str:
        http = leaseway_client(ctx, cost=openai.cost)

A preset guesses nothing. What its file does not say, such as the limits of your account or the price of a new model, is
an error that names the option and where to look the value up.
"""

from leaseway.providers.presets import Preset, Prices, load, names

__all__ = ["Preset", "Prices", "load", "names"]
