"""Drafts `table.export`: a folder per event type and day."""

from __future__ import annotations

import re
from collections import Counter

from penstock.errors import UserError
from penstock.job.spec import DAY_FOLDER
from penstock.peek.candidates import event_times, types
from penstock.peek.draft import (
    OTHER_KIND,
    Sections,
    bad_records,
    commented,
    decode_spec,
    decode_text,
    expression_text,
    field_lines,
    place_lines,
    quoted,
    refuse_names,
    table_path,
)
from penstock.peek.profile import SHARE_OF_ALL, Profile, percent

_NO_FOLDER = re.compile(r"[^A-Za-z0-9_-]+")


def suits(profile: Profile) -> bool:
    """Whether a field or header with the name of a type decides which fields a record has."""
    return any(candidate.is_named for candidate in types(profile))


def draft(profile: Profile) -> Sections:
    decode = decode_spec(profile)
    candidates = types(profile)
    if decode.format != "json" or not candidates:
        raise UserError(f"no field or header of {profile.sample.topic} tells types apart", hint=OTHER_KIND)
    refuse_names(profile, (path[0] for path in profile.fields), [DAY_FOLDER])
    route, others = candidates[0], ", ".join(item.by for item in candidates[1:])
    bad: Counter[str] = Counter(
        {"no type, or not JSON": profile.count - route.values.total() - profile.formats["tombstone"]}
    )
    rows = [
        commented("route:", route.reason),
        f"  by: {expression_text(route.by)}" + (f"  # ? or {others}" if others else ""),
        "types:",
    ]
    folders: set[str] = set()
    for value, count in route.values.most_common():
        of_type = profile.subset(
            record for (record, _), type_ in zip(profile.objects, route.types, strict=True) if type_ == value
        )
        if not len(of_type.schema):
            rows.append(f"  # ? no type for {quoted(value)}: its records have no fields")
            bad["no field has a value"] += count
            continue
        folder = _folder(value, folders)
        rows.append(commented(f"  {quoted(folder)}:", f"{percent(count / max(1, len(profile.objects)))} of records"))
        rows += [f"    values: [{quoted(value)}]"] if value != folder else []
        rows.append(_event_time(of_type))
        rows += ["    schema:", *field_lines(of_type, of_type.schema, (), "      ")]
        bad += bad_records(of_type.sample.records, decode, of_type.schema)
    if not folders:
        raise UserError(f"no record of {profile.sample.topic} has a field with a value", hint=OTHER_KIND)
    columns = [*place_lines(path[0] for path in profile.fields)]
    rows += ["columns:", *columns] if columns else []
    return Sections(decode_text(decode), [f"  export: {{path: {table_path(profile)}}}"], rows, bad=+bad)


def _event_time(profile: Profile) -> str:
    """Every record needs one: a field that all records of the type have, or the Kafka timestamp."""
    time = next((item for item in event_times(profile) if item.share >= SHARE_OF_ALL), None)
    if time is None:
        return "    event_time: kafka.timestamp  # ? no field with a time is in all records"
    return commented(f"    event_time: {expression_text(time.text)}", time.reason)


def _folder(value: str, taken: set[str]) -> str:
    """A name for the folder of a type that no other type has."""
    plain = _NO_FOLDER.sub("-", value).strip("-_")[:80] or "type"
    name, number = plain, 1
    while name.casefold() in taken:
        number += 1
        name = f"{plain}-{number}"
    taken.add(name.casefold())
    return name
