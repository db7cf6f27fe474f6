"""A small `curl` for running the documents on machines that do not have one. Needs the standard library only.

It supports the options that the documents use, with curl's meaning, output and exit codes, and rejects all others:

    curl [-s] [-i] [-N] [-X METHOD] [-H 'Name: value'] [--json TEXT] [--max-time SECONDS] URL
"""

import getopt
import http.client
import sys
import time
from typing import NamedTuple, NoReturn
from urllib.parse import SplitResult, urlsplit

BAD_OPTION, BAD_URL, CANNOT_CONNECT, BROKEN_REPLY, TIMED_OUT = 2, 3, 7, 56, 28
"""curl's exit codes."""
CONNECTIONS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


class Request(NamedTuple):
    url: SplitResult
    method: str | None = None
    headers: dict[str, str] = {}  # noqa: RUF012
    body: str | None = None
    shows_headers: bool = False
    is_silent: bool = False
    seconds_max: float | None = None


def parse_arguments(arguments: list[str]) -> Request:
    options, urls = getopt.gnu_getopt(arguments, "siNX:H:", ["json=", "max-time="])
    if len(urls) != 1:
        raise getopt.GetoptError(f"needs exactly one URL, got {len(urls)}")
    request = Request(urlsplit(urls[0]), headers={"Accept": "*/*"})
    for name, value in options:
        request = apply_option(request, name, value)
    return request


def apply_option(request: Request, name: str, value: str) -> Request:
    match name:
        case "-s":
            return request._replace(is_silent=True)
        case "-i":
            return request._replace(shows_headers=True)
        case "-X":
            return request._replace(method=value)
        case "-H":
            header, _, text = value.partition(":")
            return request._replace(headers=request.headers | {header.strip().title(): text.strip()})
        case "--json":
            kind = {"Content-Type": "application/json", "Accept": "application/json"}
            return request._replace(body=value, headers=request.headers | kind)
        case "--max-time":
            return request._replace(seconds_max=float(value))
        case _:  # -N: this client never buffers
            return request


def send(request: Request) -> None:
    deadline = time.monotonic() + request.seconds_max if request.seconds_max is not None else None
    connection = CONNECTIONS[request.url.scheme](request.url.netloc, timeout=remaining_seconds(deadline))
    path = (request.url.path or "/") + (f"?{request.url.query}" if request.url.query else "")
    method = request.method or ("GET" if request.body is None else "POST")
    body = None if request.body is None else request.body.encode()
    connection.request(method, path, body, {"User-Agent": "curl/8.0.0", **request.headers})
    socket = connection.sock
    response = connection.getresponse()
    if request.shows_headers:
        write(f"HTTP/1.1 {response.status} {response.reason}\r\n".encode())
        write("".join(f"{name}: {value}\r\n" for name, value in response.getheaders()).encode() + b"\r\n")
    while True:
        socket.settimeout(remaining_seconds(deadline))
        part = response.read1(65_536)
        if not part:
            break
        write(part)


def remaining_seconds(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    remaining = deadline - time.monotonic()
    if remaining <= 0:
        raise TimeoutError
    return remaining


def write(part: bytes) -> None:
    sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()


def leave(code: int, message: object, *, is_silent: bool) -> NoReturn:
    if not is_silent:
        print(f"curl: ({code}) {message}", file=sys.stderr)
    sys.exit(code)


def main(arguments: list[str]) -> None:
    try:
        request = parse_arguments(arguments)
    except (getopt.GetoptError, ValueError) as error:
        leave(BAD_OPTION, f"{error}; this is the stand-in of {__file__}: add the option there", is_silent=False)
    if request.url.scheme not in CONNECTIONS:
        leave(BAD_URL, f"unsupported URL {request.url.geturl()}", is_silent=False)
    try:
        send(request)
    except TimeoutError:
        leave(TIMED_OUT, f"timed out after {request.seconds_max} seconds", is_silent=request.is_silent)
    except ConnectionRefusedError as error:
        leave(CANNOT_CONNECT, error, is_silent=request.is_silent)
    except (OSError, http.client.HTTPException) as error:
        leave(BROKEN_REPLY, error, is_silent=request.is_silent)


if __name__ == "__main__":
    main(sys.argv[1:])
