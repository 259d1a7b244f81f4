"""Errors of the Delta library and of stores as the errors of Penstock that they mean."""

from __future__ import annotations

import pytest

from penstock.errors import UnreachableError
from penstock.lake.delta.library import library_errors
from penstock.storage.failures import translate_errors

IMDS = "Kernel error -> Operation not supported\n ↳ an error occurred while loading credentials\n ↳ IMDS is disabled"
METADATA = "Error performing GET http://169.254.169.254/computeMetadata/v1/instance - 403 Forbidden"


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
