"""What the words and codes of a MongoDB server mean, where no test can make a server say them at will."""

import pytest
from pymongo.errors import BulkWriteError, OperationFailure, PyMongoError, ServerSelectionTimeoutError

from leaseway.domain.errors import StoreFull, TerminalError
from leaseway.stores.mongodb.errors import parse_address, translate_error

ADDRESS = parse_address("mongodb://db.example/leaseway")
NO_SPACE = "WiredTigerIdIndex::_insert: index: _id_; uri: table:index-41 28: No space left on device"
NO_QUOTA = "WiredTigerRecordStore::insertRecord 122: Disk quota exceeded"
UNKNOWN = 8
"""The code of whatever the storage engine reports and the server has no name for."""


def of_a_write(text: str) -> PyMongoError:
    return BulkWriteError({"writeErrors": [{"index": 0, "code": UNKNOWN, "errmsg": text}]})


def of_a_command(text: str) -> PyMongoError:
    return OperationFailure(text, UNKNOWN, {"ok": 0, "code": UNKNOWN, "errmsg": text})


@pytest.mark.parametrize("failed", [of_a_write, of_a_command])
@pytest.mark.parametrize("text", [NO_SPACE, NO_QUOTA])
def test_a_disk_that_fills_up_during_a_write_is_an_error_that_passes(failed: object, text: str) -> None:
    """The server checks for space before a write, but also a write itself can find none. As a final error, it would end
    jobs that only have to wait for space."""
    assert callable(failed)
    assert isinstance(translate_error(failed(text), ADDRESS), StoreFull)


def test_an_error_without_a_known_meaning_is_final() -> None:
    """Otherwise a mistake would be repeated for ever."""
    assert isinstance(translate_error(of_a_write("a value that no index can hold"), ADDRESS), TerminalError)


def test_a_missing_right_names_the_command_and_not_its_contents() -> None:
    """The server sends back the whole command, with session ids and signatures, over a thousand characters."""
    text = 'not authorized on shop to execute command { insert: "leaseway_jobs", lsid: { id: UUID("2b") } }'
    message = str(translate_error(OperationFailure(text, 13, {"ok": 0, "code": 13, "errmsg": text}), ADDRESS))
    assert "not authorized on shop to execute insert on leaseway_jobs; the user lacks permission" in message


def test_a_replica_set_of_another_name_is_not_called_unreachable() -> None:
    """People would look for a firewall."""
    text = 'No replica set members available for replica set name "other", Timeout: 4.0s'
    assert "check replicaSet" in str(translate_error(ServerSelectionTimeoutError(text), ADDRESS))
