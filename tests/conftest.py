"""Before any test is read: failed assertions of the contract suite shall say what they compared."""

import pytest

pytest.register_assert_rewrite("leaseway.testing")
