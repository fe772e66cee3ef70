"""``jsm object del``, ``link`` and ``seal``: change what a bucket contains."""

from __future__ import annotations

import click

from ...errors import ObjectNotFoundError
from ..buckets import BUCKET_NAME, delete_bucket, find_bucket, force_option
from ..completion import complete_object, complete_store
from ..output import emit, say, size
from ..prompts import Asker
from ..sanitize import single_line, visible
from ..settings import Settings, common_options
from .bucket import show_bucket
from .entries import OBJECTS, bucket_argument, object_document


@click.command("del")
@bucket_argument
@click.argument("names", nargs=-1, metavar="[OBJECT]...", shell_complete=complete_object)
@force_option
@click.option("--ignore-missing", is_flag=True, help="Ignore what does not exist.")
@common_options
def delete(
    settings: Settings, bucket: str, names: tuple[str, ...], force: bool, ignore_missing: bool
) -> None:
    """Delete each OBJECT, or without an OBJECT the whole bucket."""
    if not names:
        delete_bucket(settings, OBJECTS, bucket, force=force, ignore_missing=ignore_missing)
        return
    ask = Asker(settings)
    found = []
    with settings.jetstream() as js:
        store = find_bucket(OBJECTS, js, bucket)
        for name in dict.fromkeys(names):
            try:
                found.append(store.info(name))
            except ObjectNotFoundError:
                if not ignore_missing:
                    raise
        listed = ", ".join(f"{bucket} > {single_line(each.name)}" for each in found)
        held = size(sum(each.size for each in found))
        if found:
            ask.confirm(f"Delete {listed} with {held}?", force=force)
        for each in found:
            store.delete(each.name)
    document = {"bucket": bucket, "deleted": [visible(each.name) for each in found]}
    emit(settings, document, lambda: say(settings, f"Deleted {listed or 'nothing'}"))


@click.command()
@bucket_argument
@click.argument("name", metavar="NAME")
@click.argument("target", required=False, metavar="[TARGET]", shell_complete=complete_object)
@click.option(
    "--to-bucket",
    type=BUCKET_NAME,
    metavar="BUCKET",
    shell_complete=complete_store,
    help="Bucket of TARGET, or without a TARGET the bucket to link to.  [default: the same]",
)
@common_options
def link(
    settings: Settings, bucket: str, name: str, target: str | None, to_bucket: str | None
) -> None:
    """
    Create a link NAME to the object TARGET, or to a bucket.

    Reading the link reads TARGET. A link with the same name is replaced, an object is not.

    \b
    Examples:
      jsm object link FILES latest.tar build-17.tar
      jsm object link FILES archive --to-bucket OLD_FILES
    """  # noqa: D301 - click requires the character, not the escape
    if target is None and to_bucket is None:
        raise click.UsageError("the target is missing: pass TARGET, --to-bucket or both")
    with settings.jetstream() as js:
        store = find_bucket(OBJECTS, js, bucket)
        other = store if to_bucket in (None, bucket) else find_bucket(OBJECTS, js, to_bucket)
        if target is None:
            info = store.add_bucket_link(name, other)
        else:
            info = store.add_link(name, other.info(target))
    where = f"{other.bucket}{'' if target is None else f' > {single_line(target)}'}"
    text = f"{bucket} > {single_line(name)} is a link to {where}"
    emit(settings, object_document(info), lambda: say(settings, text))


@click.command()
@bucket_argument
@force_option
@common_options
def seal(settings: Settings, bucket: str, force: bool) -> None:
    """Make a bucket read-only, permanently; objects can neither be added nor deleted."""
    with settings.jetstream() as js:
        store = find_bucket(OBJECTS, js, bucket)
        if not store.status().sealed:
            Asker(settings).confirm(f"Seal bucket {bucket} permanently?", force=force)
            store.seal()
        status = store.status()
    show_bucket(settings, status, f"{OBJECTS.noun} {bucket} is sealed")
