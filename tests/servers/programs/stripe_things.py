"""localstripe with customers: python stripe_things.py PORT COUNT"""

import sys

from aiohttp import web
from localstripe import resources
from localstripe.server import app

PORT, COUNT = int(sys.argv[1]), int(sys.argv[2])

resources.Store.dump_to_disk = lambda self: None  # it would write a file that other runs read
for number in range(1, COUNT + 1):
    resources.Customer(name=f"thing {number}")
web.run_app(app, host="127.0.0.1", port=PORT, print=None)
