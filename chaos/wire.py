"""As much of PostgreSQL's protocol as is needed to know which statement a client executes.

A prepared statement is sent as text once and by name from then on, so the reader remembers the names.
"""

HEADER_BYTES = 5
NO_SESSION = {80_877_102, 80_877_103, 80_877_104}
"""Codes of the messages that may come before a session: cancel, SSL, GSS encryption."""


class Requests:
    """Reads what one client sends, in chunks of any size, and yields the text of each statement that is executed."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._is_greeting = True
        self._prepared: dict[bytes, bytes] = {}

    def feed(self, chunk: bytes) -> list[bytes]:
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
