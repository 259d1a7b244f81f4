"""The options of object stores that `storage` may state; Hadoop's, for HDFS, are any."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from penstock.job.faults import KeyPath, nearest
from penstock.job.values import LOST, read_settings

if TYPE_CHECKING:
    from penstock.job.reader import SpecReader

CLIENT_OPTIONS = frozenset(
    {
        "allow_http", "allow_invalid_certificates", "connect_timeout", "default_content_type", "http1_only",
        "http2_keep_alive_interval", "http2_keep_alive_timeout", "http2_keep_alive_while_idle", "http2_only",
        "pool_idle_timeout", "pool_max_idle_per_host", "proxy_url", "proxy_ca_certificate", "proxy_excludes",
        "randomize_addresses", "read_timeout", "timeout", "user_agent",
    }
)  # fmt: skip
RETRY_OPTIONS = frozenset({"max_retries", "retry_timeout"})
ONLY_FOR_DELTALAKE = re.compile(
    r"(allow_unsafe_rename|locking_provider|dynamo|force_credential_load|backoff_config)", re.IGNORECASE
)
_S3 = (
    "access_key_id secret_access_key session_token token region default_region endpoint endpoint_url "
    "endpoint_url_sts bucket bucket_name virtual_hosted_style_request s3_express imdsv1_fallback "
    "metadata_endpoint unsigned_payload checksum_algorithm container_credentials_relative_uri "
    "container_credentials_full_uri container_authorization_token_file web_identity_token_file role_arn "
    "role_session_name skip_signature copy_if_not_exists conditional_put disable_tagging disable_bulk_delete "
    "request_payer server_side_encryption sse_kms_key_id sse_bucket_key_enabled sse_customer_key_base64"
)
_GCS = (
    "service_account service_account_path service_account_key bucket bucket_name base_url application_credentials "
    "bearer_token skip_signature"
)
_AZURE = (
    "account_key access_key master_key account_name client_id client_secret tenant_id authority_id authority_host "
    "sas_key sas_token bearer_token token use_emulator endpoint msi_endpoint identity_endpoint object_id "
    "msi_resource_id federated_token_file use_fabric_endpoint use_azure_cli skip_signature container_name "
    "disable_tagging fabric_token_service_url fabric_workload_host fabric_session_token fabric_cluster_identifier "
    "credential_type encryption_key"
)
OPTIONS: dict[str, tuple[str, frozenset[str]]] = {
    scheme: (vendor, CLIENT_OPTIONS | RETRY_OPTIONS | frozenset(names.split()))
    for schemes, vendor, names in (("s3 s3a", "aws_", _S3), ("gs", "google_", _GCS), ("az abfss", "azure_", _AZURE))
    for scheme in schemes.split()
}
"""By scheme: the prefix that names may have, and the names without it."""


def read_storage(value: object, at: KeyPath, reader: SpecReader) -> object:
    """The settings of a store; those that it does not know are noted, with the closest match."""
    settings = read_settings(value, at, reader)
    scheme = str(reader.written(*at[:-1], "path")).strip().partition("://")[0]
    if settings is LOST or scheme not in OPTIONS:
        return settings
    vendor, names = OPTIONS[scheme]
    for name in settings:
        plain = name.lower().removeprefix(vendor).removeprefix("storage_" if vendor == "azure_" else "")
        if plain not in names and not ONLY_FOR_DELTALAKE.search(name):
            # Azure has no one prefix for all of its options.
            prefix = vendor if name.lower().startswith(vendor) and vendor != "azure_" else ""
            hint = nearest(prefix + plain, [prefix + known for known in names]) or f"its options begin with {vendor}"
            reader.note((*at, name), f"is not an option of {scheme}:// storage", hint, on_key=True)
    return settings
