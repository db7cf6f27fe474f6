"""A test that asks for a `tree` is run with each earlier version of the schema, the newest first."""

import pytest
from tests.upgrades.earlier import Earlier, Tree, earlier_versions

NO_HISTORY = "this checkout has no history, and so no code of an earlier version"


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "tree" in metafunc.fixturenames:
        found = [pytest.param(each, id=f"version {each.version}") for each in earlier_versions()]
        none = pytest.param(None, marks=pytest.mark.skip(reason=NO_HISTORY), id="none")
        metafunc.parametrize("tree", found or [none], indirect=True)


@pytest.fixture
def tree(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tree:
    earlier: Earlier = request.param
    return Tree(earlier, tmp_path_factory.mktemp(f"version-{earlier.version}"))
