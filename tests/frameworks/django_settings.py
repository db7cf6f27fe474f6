"""The settings of the tests' Django project. Tests set the address of the database."""

from importlib.util import find_spec

SECRET_KEY = "only for tests"
USE_TZ = True
INSTALLED_APPS = [] if find_spec("django.tasks") else ["django_tasks"]
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "postgres"}}
TASKS = {"default": {"BACKEND": "leaseway.django.LeasewayBackend", "QUEUES": ["default", "mail"]}}
