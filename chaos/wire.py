"""As much of the protocols of PostgreSQL and MongoDB as the proxy needs: which statement or command a client executes,
and, for MongoDB, which addresses a reply names.
"""

from collections.abc import Mapping
from typing import Protocol

HEADER_BYTES = 5
NO_SESSION = {80_877_102, 80_877_103, 80_877_104}
"""Codes of the messages that may come before a session: cancel, SSL, GSS encryption."""


class Traffic(Protocol):
    """What is said on one connection, in chunks of any size."""

    def requests(self, chunk: bytes) -> list[bytes]:
        """From the client: the text of each statement, or the name of each command, that is complete now."""
        ...

    def replies(self, chunk: bytes) -> bytes:
        """From the server: what the client is to receive instead."""
        ...


class PostgresTraffic:
    """A prepared statement is sent as text once and by name from then on, so the names are remembered."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._is_greeting = True
        self._prepared: dict[bytes, bytes] = {}

    def replies(self, chunk: bytes) -> bytes:
        return chunk

    def requests(self, chunk: bytes) -> list[bytes]:
        """Statements whose execution was requested by messages that are complete now."""
        self._bytes += chunk
        asked: list[bytes] = []
        while (message := self._next()) is not None:
            text = self._asked_by(*message)
            if text is not None:
                asked.append(text)
        return asked

    def _next(self) -> tuple[bytes, bytes] | None:
        """The next complete message: its type, which start-up messages lack, and its body."""
        head = 0 if self._is_greeting else 1
        if len(self._bytes) < head + 4:
            return None
        end = head + int.from_bytes(self._bytes[head : head + 4], "big")
        if len(self._bytes) < end:
            return None
        type_, body = bytes(self._bytes[:head]), bytes(self._bytes[head + 4 : end])
        del self._bytes[:end]
        if self._is_greeting:
            self._is_greeting = int.from_bytes(body[:4], "big") in NO_SESSION
        return type_, body

    def _asked_by(self, type_: bytes, body: bytes) -> bytes | None:
        match type_:
            case b"Q":  # a simple query
                return body
            case b"P":  # parse: name, text
                name, text, *_ = body.split(b"\0", 2)
                self._prepared[name] = text
            case b"B":  # bind: portal, name of the statement; a bound statement is about to be executed
                _, name, *_ = body.split(b"\0", 2)
                return self._prepared.get(name, b"")
        return None


MESSAGE = 2_013
"""The code of OP_MSG. Before a session, a driver may send messages with other codes."""
CODE_AT, NAME_AT = 12, 26
"""The name of a command is the first name of its document, which follows a header of 16 bytes, flags of 4, a kind of 1,
a size of 4, and a type of 1."""


class MongoTraffic:
    """The members of a replica set tell clients their own addresses, which bypass the proxies. So in replies these are
    replaced by the addresses of the proxies, which are as long.
    """

    def __init__(self, addresses: Mapping[bytes, bytes]) -> None:
        self._addresses = addresses
        self._asked, self._answered = bytearray(), bytearray()

    def requests(self, chunk: bytes) -> list[bytes]:
        return [name for message in complete_messages(self._asked, chunk) if (name := command_name(message))]

    def replies(self, chunk: bytes) -> bytes:
        replies = b"".join(complete_messages(self._answered, chunk))
        for address, instead in self._addresses.items():
            replies = replies.replace(address, instead)
        return replies


def complete_messages(buffer: bytearray, chunk: bytes) -> list[bytes]:
    """The messages that are complete with this chunk; the rest stays in the buffer."""
    buffer += chunk
    messages: list[bytes] = []
    while len(buffer) >= 4 and len(buffer) >= (size := int.from_bytes(buffer[:4], "little")):
        messages.append(bytes(buffer[:size]))
        del buffer[:size]
    return messages


def command_name(message: bytes) -> bytes:
    """Empty for messages that are not OP_MSG."""
    is_message = int.from_bytes(message[CODE_AT : CODE_AT + 4], "little") == MESSAGE
    return message[NAME_AT:].split(b"\0", 1)[0] if is_message else b""
