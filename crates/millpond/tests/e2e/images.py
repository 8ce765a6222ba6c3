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
