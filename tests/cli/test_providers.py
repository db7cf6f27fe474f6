"""`leaseway providers`: what is known of a provider, from where and as of when."""

from tests.cli.place import Place


def test_presets_are_listed(place: Place) -> None:
    """A user looks here before typing in limits, without a store."""
    lines = place.ok("providers").out.splitlines()
    assert lines[0].split()[:3] == ["name", "provider", "limits"]
    assert [line.split()[0] for line in lines[1:]] == [
        "anthropic", "gemini", "github", "open-charge-map", "openai", "stripe"
    ]  # fmt: skip
    assert place.ok("providers", "list").out == place.ok("providers").out
    assert [each["name"] for each in place.json("providers")["providers"]][-1] == "stripe"


def test_a_preset_is_shown_with_its_sources(place: Place) -> None:
    """Numbers without source and date cannot be trusted."""
    shown = place.ok("providers", "show", "anthropic").out
    for text in ("500k/minute", "as of  2026-10-17", "anthropic-ratelimit-input-tokens-remaining", "claude-sonnet-5"):
        assert text in shown
    assert 'pass requests="500/minute"' in place.ok("providers", "show", "openai").out
    assert "100 at once" in place.ok("providers", "show", "github").out
    told = place.json("providers", "show", "openai")
    assert told["prices"]["models"]["gpt-5-mini"] == {
        "input": 0.25, "output": 2.0, "cache_read": 0.025, "cache_write": None
    }  # fmt: skip


def test_an_unknown_preset_names_the_known_ones(place: Place) -> None:
    """A typing error is answered with the list."""
    answer = place.run("providers", "show", "opnai")
    assert answer.code == 2
    assert "choose one of: anthropic, gemini, github" in answer.err
