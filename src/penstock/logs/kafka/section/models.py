"""The keys under `log.kafka`."""

from __future__ import annotations

from typing import Annotated, get_args

from penstock.job.sections.models import TopicsSection
from penstock.job.sections.scalars import Flag, Hidden, Settings, Text, one_of
from penstock.job.sections.section import Section
from penstock.job.spec import SaslMechanism, SecurityProtocol


class SecuritySection(Section):
    protocol: Annotated[SecurityProtocol | None, one_of(get_args(SecurityProtocol))] = None
    sasl_mechanism: Annotated[SaslMechanism | None, one_of(get_args(SaslMechanism))] = None
    sasl_username: Text = None
    sasl_password: Hidden = None
    ssl_ca_path: Text = None
    ssl_certificate_path: Text = None
    ssl_key_path: Text = None
    ssl_key_password: Hidden = None


class KafkaSection(TopicsSection):
    REQUIRED = ("bootstrap",)
    REMOVED = {"reader": "it was removed: librdkafka reads in every task; remove the key"}  # noqa: RUF012, inherited
    SHARED = True

    bootstrap: Text = None
    transactional: Flag = None
    security: SecuritySection | None = None
    client: Settings = None
