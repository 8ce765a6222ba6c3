"""What Python's rbd does with images, as Debian has it, on volumes of Millpond's."""

import errno
import threading

import rados
import rbd

MIB = 1 << 20
ORDER = 22

with open("/proc/self/maps") as maps:
    assert not [line for line in maps if "librados.so.2." in line or "librbd.so.1." in line or "/ceph/" in line]


def refused(kind, work, *arguments):
    """It is refused so."""
    try:
        work(*arguments)
    except kind:
        return
    raise AssertionError(f"{work} {arguments} is not refused")


cluster = rados.Rados(rados_id="admin", conffile="")
cluster.connect()
assert len(cluster.get_fsid()) == 36
assert "default" in cluster.list_pools()
refused(rados.ObjectNotFound, cluster.open_ioctx, "nowhere")
pool = cluster.open_ioctx("default")
images = rbd.RBD()

# Made, listed, renamed, removed.
images.create(pool, "one", 8 * MIB)
refused(rbd.ImageExists, images.create, pool, "one", MIB)
refused(rbd.InvalidArgument, images.create, pool, "no/name", MIB)
for order in (11, 26):
    try:
        images.create(pool, "odd", MIB, order)
        raise AssertionError("an order that cannot be")
    except rbd.Error as error:
        assert error.errno == errno.EDOM, error
images.create(pool, "two", 4 * MIB)
assert images.list(pool) == ["one", "two"]
images.rename(pool, "two", "zwei")
assert images.list(pool) == ["one", "zwei"]
refused(rbd.ImageNotFound, rbd.Image, pool, "two")
images.remove(pool, "zwei")
refused(rbd.ImageNotFound, images.remove, pool, "zwei")

# Read, written, zeroed.
with rbd.Image(pool, "one") as image:
    assert image.size() == 8 * MIB
    facts = image.stat()
    assert (facts["size"], facts["order"], facts["num_objs"]) == (8 * MIB, ORDER, 2)
    assert image.read(0, 512) == bytes(512)
    data = bytes(range(256)) * 3000
    assert image.write(data, 4 * MIB - 1234) == len(data)
    assert image.read(4 * MIB - 1234, len(data)) == data
    assert image.flush() is None
    assert image.write(b"end", 8 * MIB - 3) == 3
    assert image.read(8 * MIB - 3, 100) == b"end"
    refused(rbd.InvalidArgument, image.write, b"x", 8 * MIB)
    image.discard(4 * MIB - 1234, len(data))
    assert image.read(4 * MIB - 1234, len(data)) == bytes(len(data))

    # Asynchronously: the callback is told, and may ask.
    told = threading.Event()
    results = []

    def written(completion):
        results.append(completion.get_return_value())
        told.set()

    completion = image.aio_write(b"later" * 1000, 12345, written)
    completion.wait_for_complete_and_cb()
    assert told.is_set() and results == [0]
    read = []
    image.aio_read(12345, 5000, lambda _, data: read.append(data)).wait_for_complete_and_cb()
    assert read == [b"later" * 1000]
    image.aio_flush(lambda _: None).wait_for_complete_and_cb()

    # Resized while it is open.
    image.resize(12 * MIB)
    assert image.size() == 12 * MIB
    assert image.read(8 * MIB - 3, 6) == b"end" + bytes(3)

    # What is there.
    parts = []
    image.diff_iterate(0, 12 * MIB, None, lambda *part: parts.append(part))
    assert all(there for _, _, there in parts), parts
    assert any(start <= 12345 < start + length for start, length, _ in parts), parts

    # Snapshots.
    image.create_snap("before")
    refused(rbd.ImageExists, image.create_snap, "before")
    image.write(b"after", 12345)
    snapshots = list(image.list_snaps())
    assert [(one["name"], one["size"]) for one in snapshots] == [("before", 12 * MIB)], snapshots
    parts = []
    image.diff_iterate(0, 12 * MIB, "before", lambda *part: parts.append(part))
    assert [there for _, _, there in parts] == [True] and parts[0][0] <= 12345, parts
    assert not image.is_protected_snap("before")
    image.protect_snap("before")
    assert image.is_protected_snap("before")
    refused(rbd.ImageBusy, image.remove_snap, "before")

    # Back to what it was, and on.
    image.write(b"again", 12345)
    image.rollback_to_snap("before")
    assert image.read(12345, 5) == b"later"
    image.set_snap("before")
    refused(rbd.ReadOnlyImage, image.write, b"x", 0)
    image.set_snap(None)
    image.write(b"after", 12345)

    # Locks that only tell.
    assert image.list_lockers() in ([], {})
    image.lock_exclusive("one")
    refused(rbd.ImageExists, image.lock_exclusive, "one")
    lockers = image.list_lockers()
    assert lockers["exclusive"] and [cookie for _, cookie, _ in lockers["lockers"]] == ["one"], lockers
    image.unlock("one")
    image.lock_shared("two", "tag")
    assert image.list_lockers()["tag"] == "tag"
    image.break_lock(image.list_lockers()["lockers"][0][0], "two")
    assert image.list_lockers() in ([], {})

    # Who has it open.
    assert len(list(image.watchers_list())) == 1

    # Metadata.
    image.metadata_set("key", "value")
    assert image.metadata_get("key") == "value"
    assert dict(image.metadata_list()) == {"key": "value"}
    image.metadata_remove("key")
    refused(KeyError, image.metadata_get, "key")

refused(rbd.ImageHasSnapshots, images.remove, pool, "one")
with rbd.Image(pool, "one", snapshot="before") as snapshot:
    assert snapshot.read(12345, 5) == b"later"
    refused(rbd.ReadOnlyImage, snapshot.write, b"x", 0)
with rbd.Image(pool, "one", read_only=True) as image:
    assert image.read(12345, 5) == b"after"
    refused(rbd.ReadOnlyImage, image.write, b"x", 0)

# Clones.
images.clone(pool, "one", "before", pool, "clone")
with rbd.Image(pool, "clone") as clone:
    assert clone.read(12345, 5) == b"later"
    assert clone.parent_info() == ("default", "one", "before")
    assert clone.overlap() == 12 * MIB
    clone.write(b"clone", 12345)
    clone.flatten()
    refused(rbd.ImageNotFound, clone.parent_info)
    assert clone.read(12345, 5) == b"clone"
with rbd.Image(pool, "one", snapshot="before") as snapshot:
    assert list(snapshot.list_children()) == []
images.clone(pool, "one", "before", pool, "second")
with rbd.Image(pool, "one", snapshot="before") as snapshot:
    assert list(snapshot.list_children()) == [("default", "second")]
    assert [child["image"] for child in snapshot.list_children2()] == ["second"]
images.remove(pool, "second")
images.remove(pool, "clone")
with rbd.Image(pool, "one") as image:
    image.unprotect_snap("before")
    image.remove_snap("before")
    assert list(image.list_snaps()) == []

# Copies.
with rbd.Image(pool, "one") as image:
    image.copy(pool, "copy")
    refused(rbd.ImageExists, image.copy, pool, "copy")
    with rbd.Image(pool, "copy") as copy:
        assert copy.size() == 12 * MIB and copy.read(0, 12 * MIB) == image.read(0, 12 * MIB)
assert images.list(pool) == ["copy", "one"]

# The trash.
images.trash_move(pool, "copy")
assert images.list(pool) == ["one"]
lying = list(images.trash_list(pool))
assert [one["name"] for one in lying] == ["copy"], lying
assert images.trash_get(pool, lying[0]["id"])["name"] == "copy"
images.trash_restore(pool, lying[0]["id"], "back")
assert images.list(pool) == ["back", "one"]
images.trash_move(pool, "back")
images.trash_remove(pool, lying[0]["id"])
assert list(images.trash_list(pool)) == []

# A delay keeps it from being removed by who asks for no more than that.
images.create(pool, "late", MIB)
images.trash_move(pool, "late", 1000)
lying = images.trash_get(pool, list(images.trash_list(pool))[0]["id"])
assert lying["deferment_end_time"] > lying["deletion_time"]
refused(rbd.PermissionError, images.trash_remove, pool, lying["id"])
images.trash_remove(pool, lying["id"], True)

# What is asked of an image that volumes have nothing for is told again; a clone has it of its parent.
images.create(pool, "odd", 8 * MIB, 20, old_format=False, features=61, stripe_unit=1 << 16, stripe_count=4)
for features in (64, 1 << 40):
    refused(rbd.FunctionNotSupported, lambda: images.create(pool, "x", MIB, old_format=False, features=features))
with rbd.Image(pool, "odd") as image:
    facts = image.stat()
    assert (facts["order"], facts["obj_size"], facts["num_objs"]) == (20, MIB, 8), facts
    assert (image.stripe_unit(), image.stripe_count(), image.features()) == (1 << 16, 4, 63)
    image.update_features(rbd.RBD_FEATURE_FAST_DIFF, False)
    assert image.features() == 63 - rbd.RBD_FEATURE_FAST_DIFF
    refused(rbd.InvalidArgument, image.update_features, rbd.RBD_FEATURE_LAYERING, False)
    assert list(image.metadata_list()) == []
    refused(rbd.InvalidArgument, image.metadata_set, "rbd:order", "22")
    refused(KeyError, image.metadata_get, "rbd:order")
    made, changed = image.create_timestamp(), image.modify_timestamp()
    assert made.year > 2000 and changed >= made
    image.set_snap_limit(1)
    image.create_snap("s")
    refused(rbd.DiskQuotaExceeded, image.create_snap, "t")
    image.protect_snap("s")
    images.clone(pool, "odd", "s", pool, "child")
    with rbd.Image(pool, "child") as child:
        assert (child.stat()["order"], child.stripe_count()) == (20, 4)
    images.remove(pool, "child")

    # With all snapshots it is copied elsewhere.
    image.write(b"later", 0)
    image.deep_copy(pool, "deep")
    with rbd.Image(pool, "deep", "s") as copy:
        assert copy.read(0, 5) == bytes(5)
    with rbd.Image(pool, "deep") as copy:
        assert copy.read(0, 5) == b"later" and copy.is_protected_snap("s") and copy.stat()["order"] == 20
        copy.unprotect_snap("s")
        copy.remove_snap("s")
    images.remove(pool, "deep")
    image.unprotect_snap("s")
    image.remove_snap("s")

# It is moved: told so until that is for good.
images.migration_prepare(pool, "odd", pool, "even", order=22)
status = images.migration_status(pool, "even")
assert (status["source_image_name"], status["state"]) == ("odd", rbd.RBD_IMAGE_MIGRATION_STATE_PREPARED)
refused(rbd.ImageBusy, lambda: images.migration_prepare(pool, "even", pool, "other"))
images.migration_abort(pool, "even")
with rbd.Image(pool, "odd") as image:
    assert image.stat()["order"] == 20 and image.read(0, 5) == b"later"
images.migration_prepare(pool, "odd", pool, "even", order=22)
refused(rbd.InvalidArgument, images.migration_commit, pool, "even")
images.migration_execute(pool, "even")
images.migration_commit(pool, "even")
refused(rbd.InvalidArgument, images.migration_status, pool, "even")
with rbd.Image(pool, "even") as image:
    assert image.stat()["order"] == 22 and image.read(0, 5) == b"later"

# The exclusive lock by hand: kept until it is released, or broken, which fences whoever had it.
other = rados.Rados(rados_id="admin", conffile="")
other.connect()
there = other.open_ioctx("default")
with rbd.Image(pool, "even") as first, rbd.Image(there, "even") as second:
    assert list(first.lock_get_owners()) == [] and not first.is_exclusive_lock_owner()
    first.lock_acquire(rbd.RBD_LOCK_MODE_EXCLUSIVE)
    assert first.is_exclusive_lock_owner() and not second.is_exclusive_lock_owner()
    refused(rbd.ReadOnlyImage, second.lock_acquire, rbd.RBD_LOCK_MODE_EXCLUSIVE)
    refused(rbd.ReadOnlyImage, second.write, b"no", 0)
    first.write(b"first", 0)
    first.lock_release()
    refused(rbd.InvalidArgument, first.lock_release)
    second.write(b"other", 0)
    assert second.is_exclusive_lock_owner() and first.read(0, 5) == b"other"
    first.lock_acquire(rbd.RBD_LOCK_MODE_EXCLUSIVE)
    owners = list(second.lock_get_owners())
    assert [owner["mode"] for owner in owners] == [rbd.RBD_LOCK_MODE_EXCLUSIVE], owners
    refused(rbd.ImageBusy, second.lock_break, rbd.RBD_LOCK_MODE_EXCLUSIVE, "client.4000000000")
    second.lock_break(rbd.RBD_LOCK_MODE_EXCLUSIVE, owners[0]["owner"])
    refused(rbd.ConnectionShutdown, first.is_exclusive_lock_owner)
    refused(rbd.ConnectionShutdown, first.write, b"never", 0)
    second.lock_acquire(rbd.RBD_LOCK_MODE_EXCLUSIVE)
    assert second.read(0, 5) == b"other"
there.close()
other.shutdown()
images.remove(pool, "even")

# A size of nothing, and more again.
images.create(pool, "none", 0)
with rbd.Image(pool, "none") as image:
    assert image.size() == 0 and list(image.list_snaps()) == []
    image.resize(MIB)
    image.write(b"now", 0)
    image.resize(0)
    image.resize(MIB)
    assert image.read(0, 3) == bytes(3)
images.remove(pool, "none")

# Groups: snapshots of several images together.
images.group_create(pool, "group")
refused(rbd.ObjectExists, images.group_create, pool, "group")
images.group_rename(pool, "group", "both")
assert images.group_list(pool) == ["both"]
for name in ("a", "b"):
    images.create(pool, name, MIB)
both = rbd.Group(pool, "both")
both.add_image(pool, "a")
both.add_image(pool, "b")
refused(rbd.ObjectExists, both.add_image, pool, "a")
assert sorted(image["name"] for image in both.list_images()) == ["a", "b"]
with rbd.Image(pool, "a") as image:
    assert image.group()["name"] == "both" and image.op_features() & rbd.RBD_OPERATION_FEATURE_GROUP
    image.write(b"before", 0)
both.create_snap("s")
assert [snapshot["name"] for snapshot in both.list_snaps()] == ["s"]
with rbd.Image(pool, "a") as image:
    image.write(b"after.", 0)
    (snapshot,) = image.list_snaps()
    assert snapshot["namespace"] == rbd.RBD_SNAP_NAMESPACE_TYPE_GROUP, snapshot
    assert (snapshot["group"]["name"], snapshot["group"]["snap_name"]) == ("both", "s"), snapshot
    refused(rbd.ImageNotFound, image.remove_snap, snapshot["name"])
both.rollback_to_snap("s")
with rbd.Image(pool, "a") as image:
    assert image.read(0, 6) == b"before"
both.rename_snap("s", "t")
both.remove_image(pool, "b")
refused(rbd.ObjectNotFound, both.remove_image, pool, "b")
both.remove_snap("t")
images.group_remove(pool, "both")
for name in ("a", "b"):
    images.remove(pool, name)

# What is said beside a pool.
images.config_set(pool, "rbd_cache", "true")
options = {option["name"]: option for option in images.config_list(pool)}
assert (options["rbd_cache"]["value"], options["rbd_cache"]["source"]) == ("true", rbd.RBD_CONFIG_SOURCE_POOL)
with rbd.Image(pool, "one") as image:
    image.config_set("rbd_cache", "false")
    options = {option["name"]: option["source"] for option in image.config_list()}
    assert options["rbd_cache"] == rbd.RBD_CONFIG_SOURCE_IMAGE
    image.config_remove("rbd_cache")
images.config_remove(pool, "rbd_cache")
refused(KeyError, images.config_get, pool, "rbd_cache")

# How many there are.
statistics = images.pool_stats_get(pool)
assert (statistics["image_count"], statistics["image_provisioned_bytes"]) == (1, 12 * MIB), statistics

# Namespaces.
images.namespace_create(pool, "apart")
assert images.namespace_list(pool) == ["apart"] and images.namespace_exists(pool, "apart")
pool.set_namespace("apart")
assert images.list(pool) == []
images.create(pool, "one", MIB)
with rbd.Image(pool, "one") as image:
    assert image.size() == MIB
images.remove(pool, "one")
pool.set_namespace("")
images.namespace_remove(pool, "apart")
refused(rbd.ImageNotFound, images.namespace_remove, pool, "apart")

images.remove(pool, "one")
assert images.list(pool) == []
pool.close()
cluster.shutdown()
print("all of it")
