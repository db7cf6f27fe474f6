"""Django REST framework, its JSON:API and django-oauth-toolkit: python django_things.py FOLDER PORT COUNT SECRET"""

import sys

import django
from django.conf import settings
from django.core.management import call_command
from django.urls import include, path

FOLDER, PORT, COUNT, SECRET = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]

settings.configure(
    ALLOWED_HOSTS=["127.0.0.1"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": f"{FOLDER}/things.sqlite3"}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    INSTALLED_APPS=[
        "django.contrib.auth",
        "django.contrib.contenttypes",
        "oauth2_provider",
        "rest_framework",
        "rest_framework_json_api",
    ],
    OAUTH2_PROVIDER={
        "SCOPES": {"things": "read things"},
        "ACCESS_TOKEN_EXPIRE_SECONDS": 3,
        "REFRESH_TOKEN_GRACE_PERIOD_SECONDS": 60,  # a client may die between the reply and its disk
    },
    ROOT_URLCONF=__name__,
    SECRET_KEY="only for tests",
    USE_TZ=True,
)
django.setup()

from django.contrib.auth.models import User  # noqa: E402
from django.db import connection, models  # noqa: E402
from django.utils import timezone  # noqa: E402
from oauth2_provider.contrib.rest_framework import OAuth2Authentication  # noqa: E402
from oauth2_provider.models import AccessToken, Application, RefreshToken  # noqa: E402
from rest_framework import generics, pagination, permissions, serializers  # noqa: E402
from rest_framework.renderers import JSONRenderer  # noqa: E402
from rest_framework_json_api.pagination import JsonApiPageNumberPagination  # noqa: E402
from rest_framework_json_api.renderers import JSONRenderer as JsonApiRenderer  # noqa: E402


class Thing(models.Model):
    name = models.CharField(max_length=40)

    class Meta:
        app_label = "things"


class ThingSerializer(serializers.ModelSerializer):
    class Meta:
        model = Thing
        fields = ("id", "name")


class ByPage(pagination.PageNumberPagination):
    page_size = 20
    page_size_query_param = "page_size"


class ByCursor(pagination.CursorPagination):
    page_size = 20
    ordering = "id"


class Things(generics.ListAPIView):
    queryset = Thing.objects.order_by("id")
    serializer_class = ThingSerializer
    renderer_classes = (JSONRenderer,)
    pagination_class = ByPage


class ThingsByOffset(Things):
    pagination_class = pagination.LimitOffsetPagination


class ThingsByCursor(Things):
    pagination_class = ByCursor


class ThingsOfJsonApi(Things):
    renderer_classes = (JsonApiRenderer,)
    pagination_class = JsonApiPageNumberPagination
    resource_name = "things"


class GuardedThings(ThingsByCursor):
    authentication_classes = (OAuth2Authentication,)
    permission_classes = (permissions.IsAuthenticated,)

    def check_permissions(self, request: object) -> None:
        if getattr(request, "auth", None) is None:  # a client has a token and no user
            super().check_permissions(request)


urlpatterns = [
    path("pages/", Things.as_view()),
    path("offsets/", ThingsByOffset.as_view()),
    path("cursors/", ThingsByCursor.as_view()),
    path("json-api/", ThingsOfJsonApi.as_view()),
    path("guarded/", GuardedThings.as_view()),
    path("o/", include("oauth2_provider.urls", namespace="oauth2_provider")),
]


def seed() -> None:
    call_command("migrate", verbosity=0)
    with connection.schema_editor() as editor:
        editor.create_model(Thing)
    Thing.objects.bulk_create(Thing(id=number, name=f"thing {number}") for number in range(1, COUNT + 1))
    Application.objects.create(
        name="importer",
        client_id="importer",
        client_secret=SECRET,
        client_type=Application.CLIENT_CONFIDENTIAL,
        authorization_grant_type=Application.GRANT_CLIENT_CREDENTIALS,
    )
    rotating = Application.objects.create(
        name="rotating",
        client_id="rotating",
        client_secret=SECRET,
        client_type=Application.CLIENT_CONFIDENTIAL,
        authorization_grant_type=Application.GRANT_AUTHORIZATION_CODE,
        redirect_uris="http://127.0.0.1/",
    )
    owner = User.objects.create_user("owner")
    for name in ("first", "second"):
        access = AccessToken.objects.create(
            user=owner, application=rotating, token=f"{name}-access", scope="things", expires=timezone.now()
        )
        RefreshToken.objects.create(user=owner, application=rotating, token=f"{name}-refresh", access_token=access)


seed()
call_command("runserver", f"127.0.0.1:{PORT}", use_reloader=False, skip_checks=True)
