"""Errors of the Delta library and of stores as the errors of Penstock that they mean."""

from __future__ import annotations

import socket

import pytest

from penstock.errors import UnreachableError
from penstock.lake.delta.library import library_errors
from penstock.lake.delta.opening import find_table
from penstock.lake.delta.schema import TablePlace
from penstock.storage.failures import translate_errors

IMDS = "Kernel error -> Operation not supported\n ↳ an error occurred while loading credentials\n ↳ IMDS is disabled"
METADATA = "Error performing GET http://169.254.169.254/computeMetadata/v1/instance - 403 Forbidden"


def test_a_store_at_whose_address_nothing_listens_ends_a_first_run_at_once() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{unused.getsockname()[1]}"
    options = {"aws_endpoint_url": address, "aws_allow_http": "true", "aws_region": "us-east-1", "max_retries": "1"}
    keys = {"aws_access_key_id": "id", "aws_secret_access_key": "key"}
    place = TablePlace(path="s3://lake/orders", storage_options={**options, **keys})
    with pytest.raises(UnreachableError) as raised:
        find_table(place, "orders")
    assert raised.value.primary == "the table at s3://lake/orders does not answer"


@pytest.mark.parametrize("text", [IMDS, METADATA])
@pytest.mark.parametrize(
    ("url", "variable", "key"),
    [
        ("s3://lake/orders", "AWS_ACCESS_KEY_ID", "aws_access_key_id"),
        ("gs://lake/orders", "GOOGLE_SERVICE_ACCOUNT", "google_service_account"),
        ("abfss://lake/orders", "AZURE_STORAGE_ACCOUNT_NAME", "azure_storage_account_name"),
    ],
)
def test_missing_credentials_name_the_variables_and_the_storage_keys(
    text: str, url: str, variable: str, key: str
) -> None:
    for translated in (library_errors, translate_errors):
        with pytest.raises(UnreachableError) as raised, translated(url):
            raise OSError(text)
        assert raised.value.primary == f"no credentials for {url}"
        assert variable in raised.value.hint and key in raised.value.hint
        assert "\n" not in raised.value.detail or translated is translate_errors
