//! Groups of images, of which snapshots are made together.

use super::attributes::now;
use super::image::image_of;
use super::snapshots::is_of_group;
use crate::cluster::Connected;
use crate::entry::{Progress, answer_done, answer_int, tell_done};
use crate::errno::{Answer, Errno};
use crate::image::{Image, id_of_text};
use crate::rados::Pool;
use crate::text::{disowned, given, owned, put_all, put_list, tell};
use base::map::{ClusterMap, VolumeInfo};
use base::names::PlaceName;
use base::{PoolId, VolumeId};
use cluster::{GroupChange, GroupRecord, GroupSnapshot, Groups, VolumeChange};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};

/// The image is in the group for good, by the number of `rbd.h`.
const ATTACHED: c_int = 0;
/// A snapshot of a group is of all images.
const COMPLETE: c_int = 1;
const INCOMPLETE: c_int = 0;

/// `rbd_group_info_t`.
#[repr(C)]
pub struct Info {
    name: *mut c_char,
    pool: i64,
}

/// `rbd_group_image_info_t`.
#[repr(C)]
pub struct Member {
    name: *mut c_char,
    pool: i64,
    state: c_int,
}

/// `rbd_group_snap_info_t`.
#[repr(C)]
pub struct Snapshot {
    name: *mut c_char,
    state: c_int,
}

/// `rbd_snap_group_namespace_t`.
#[repr(C)]
pub struct SnapshotOf {
    group_pool: i64,
    group_name: *mut c_char,
    group_snap_name: *mut c_char,
}

/// A group that an image, or a snapshot of one, is of.
pub(super) struct Found {
    pool: PoolId,
    name: String,
    record: GroupRecord,
}

fn groups_of(cluster: &Connected, place: &PlaceName) -> Answer<BTreeMap<String, GroupRecord>> {
    cluster.ask(Groups { place: place.to_string() })
}

/// The groups of a pool and namespace.
fn listed(pool: &Pool) -> Answer<BTreeMap<String, GroupRecord>> {
    groups_of(pool.cluster(), &pool.place()?)
}

fn named(pool: &Pool, name: &str) -> Answer<GroupRecord> {
    listed(pool)?.remove(name).ok_or(Errno(libc::ENOENT))
}

fn change(pool: &Pool, group: &str, change: GroupChange) -> Answer<()> {
    base::names::check(group).map_err(|_| Errno(libc::EINVAL))?;
    let name = format!("{}/{group}", pool.place()?);
    pool.cluster().change(VolumeChange::Group { name, change }).map(drop)
}

/// Whether a place of the program's is as large as what is wanted there: it says so.
fn check_size<T>(bytes: usize) -> Answer<()> {
    if bytes == size_of::<T>() { Ok(()) } else { Err(Errno(libc::ERANGE)) }
}

impl Image {
    /// The group of which `is_it` says so: looked for where the image is, and then elsewhere.
    pub(super) fn group_that(&self, is_it: impl Fn(&GroupRecord) -> bool) -> Answer<Option<Found>> {
        let (map, own) = (self.cluster.map_now()?, self.info()?);
        let mut places: Vec<(PoolId, String)> = vec![(own.pool, own.namespace)];
        for pool in map.pools.keys() {
            let namespaces = map.namespaces.get(pool).into_iter().flatten().map(|(name, _)| name.clone());
            places.extend(namespaces.chain([String::new()]).map(|namespace| (*pool, namespace)));
        }
        for (pool, namespace) in places {
            let Some(info) = map.pools.get(&pool) else { continue };
            let place = PlaceName { pool: info.name.clone(), namespace };
            let groups = match groups_of(&self.cluster, &place) {
                // What the key is not for is none of its business.
                Err(Errno(libc::EACCES)) => continue,
                groups => groups?,
            };
            if let Some((name, record)) = groups.into_iter().find(|(_, record)| is_it(record)) {
                return Ok(Some(Found { pool, name, record }));
            }
        }
        Ok(None)
    }

    /// The group that it is in, if it is in one.
    pub(super) fn group(&self) -> Answer<Option<Found>> {
        self.group_that(|record| record.volumes.contains(&self.volume))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_group_create(pool: *mut c_void, name: *const c_char) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { change(Pool::of(pool)?, given(name)?, GroupChange::Create) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_group_remove(pool: *mut c_void, name: *const c_char) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| match unsafe { change(Pool::of(pool)?, given(name)?, GroupChange::Remove) } {
        // That there is none is what was wanted.
        Err(Errno(libc::ENOENT)) => Ok(()),
        removed => removed,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_group_rename(
    pool: *mut c_void,
    name: *const c_char,
    new: *const c_char,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        change(Pool::of(pool)?, given(name)?, GroupChange::Rename { new: given(new)?.to_owned() })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_group_list(pool: *mut c_void, places: *mut c_char, bytes: *mut usize) -> c_int {
    answer_int(|| {
        // SAFETY: what the program hands over.
        let all = listed(unsafe { Pool::of(pool) }?)?;
        // SAFETY: as above.
        unsafe { put_all(all.keys().map(String::as_str), places, bytes) }.map(|bytes| bytes as i64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_group_image_add(
    pool: *mut c_void,
    group: *const c_char,
    image_pool: *mut c_void,
    image: *const c_char,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (pool, of_image) = unsafe { (Pool::of(pool)?, Pool::of(image_pool)?) };
        // SAFETY: as above.
        let (group, image) = unsafe { (given(group)?, given(image)?) };
        change(pool, group, GroupChange::Add { volume: of_image.name_of(image)? })
    })
}

fn take_out(pool: &Pool, group: &str, volume: VolumeId) -> Answer<()> {
    change(pool, group, GroupChange::TakeOut { volume })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_group_image_remove(
    pool: *mut c_void,
    group: *const c_char,
    image_pool: *mut c_void,
    image: *const c_char,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (pool, of_image) = unsafe { (Pool::of(pool)?, Pool::of(image_pool)?) };
        // SAFETY: as above.
        let (group, image) = unsafe { (given(group)?, given(image)?) };
        let map = of_image.cluster().map_now()?;
        let found = map.find_volume(&of_image.name_of(image)?).map_err(|_| Errno(libc::ENOENT))?;
        take_out(pool, group, found.0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_group_image_remove_by_id(
    pool: *mut c_void,
    group: *const c_char,
    _image_pool: *mut c_void,
    id: *const c_char,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { take_out(Pool::of(pool)?, given(group)?, id_of_text(given(id)?)?) })
}

/// The images that are in a group and there.
fn members<'a>(record: &'a GroupRecord, map: &'a ClusterMap) -> Vec<&'a VolumeInfo> {
    let known = record.volumes.iter().filter_map(|volume| map.volumes.get(volume));
    known.filter(|info| info.is_listed()).collect()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_group_image_list(
    pool: *mut c_void,
    group: *const c_char,
    places: *mut Member,
    bytes: usize,
    room: *mut usize,
) -> c_int {
    answer_int(|| {
        check_size::<Member>(bytes)?;
        // SAFETY: what the program hands over.
        let (pool, group) = unsafe { (Pool::of(pool)?, given(group)?) };
        let (record, map) = (named(pool, group)?, pool.cluster().map_now()?);
        let member = |info: &&VolumeInfo| Member {
            name: owned(&info.name),
            pool: i64::from(info.pool.0),
            state: ATTACHED,
        };
        // SAFETY: as above.
        unsafe { put_list(&members(&record, &map), member, places, room) }
    })
}

/// Takes back what lists were filled with.
unsafe fn clean_up<T>(
    places: *mut T,
    bytes: usize,
    count: usize,
    text: fn(&mut T) -> &mut *mut c_char,
) -> c_int {
    answer_done(|| {
        check_size::<T>(bytes)?;
        for number in 0..count {
            // SAFETY: as the caller promises; their texts came from `owned`.
            unsafe { disowned(text(places.add(number).as_mut().ok_or(Errno(libc::EINVAL))?)) };
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_group_image_list_cleanup(
    places: *mut Member,
    bytes: usize,
    count: usize,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { clean_up(places, bytes, count, |member| &mut member.name) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_group_info_cleanup(info: *mut Info, bytes: usize) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { clean_up(info, bytes, 1, |info| &mut info.name) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_get_group(image: *mut c_void, place: *mut Info, bytes: usize) -> c_int {
    answer_done(|| {
        check_size::<Info>(bytes)?;
        // SAFETY: what the program hands over.
        let found = unsafe { image_of(image) }?.group()?;
        let info = match &found {
            Some(found) => Info { name: owned(&found.name), pool: i64::from(found.pool.0) },
            None => Info { name: owned(""), pool: -1 },
        };
        // SAFETY: as above.
        unsafe { tell(place, info) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_group_snap_create(
    pool: *mut c_void,
    group: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        let (name, at_unix_seconds) = (given(name)?.to_owned(), now());
        change(Pool::of(pool)?, given(group)?, GroupChange::TakeSnapshot { name, at_unix_seconds })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_group_snap_create2(
    pool: *mut c_void,
    group: *const c_char,
    name: *const c_char,
    _flags: u32,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { rbd_group_snap_create(pool, group, name) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_group_snap_remove(
    pool: *mut c_void,
    group: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        let name = given(name)?.to_owned();
        change(Pool::of(pool)?, given(group)?, GroupChange::RemoveSnapshot { name })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_group_snap_rename(
    pool: *mut c_void,
    group: *const c_char,
    name: *const c_char,
    new: *const c_char,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        let (name, new) = (given(name)?.to_owned(), given(new)?.to_owned());
        change(Pool::of(pool)?, given(group)?, GroupChange::RenameSnapshot { name, new })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_group_snap_list(
    pool: *mut c_void,
    group: *const c_char,
    places: *mut Snapshot,
    bytes: usize,
    room: *mut usize,
) -> c_int {
    answer_int(|| {
        check_size::<Snapshot>(bytes)?;
        // SAFETY: what the program hands over.
        let record = unsafe { named(Pool::of(pool)?, given(group)?) }?;
        let snapshot = |snapshot: &GroupSnapshot| Snapshot {
            name: owned(&snapshot.name),
            state: if snapshot.is_complete { COMPLETE } else { INCOMPLETE },
        };
        // SAFETY: as above.
        unsafe { put_list(&record.snapshots, snapshot, places, room) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_group_snap_list_cleanup(
    places: *mut Snapshot,
    bytes: usize,
    count: usize,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { clean_up(places, bytes, count, |snapshot| &mut snapshot.name) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_group_snap_rollback(
    pool: *mut c_void,
    group: *const c_char,
    name: *const c_char,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { rbd_group_snap_rollback_with_progress(pool, group, name, None, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_group_snap_rollback_with_progress(
    pool: *mut c_void,
    group: *const c_char,
    name: *const c_char,
    progress: Progress,
    told: *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        let (pool, group, name) = (Pool::of(pool)?, given(group)?, given(name)?.to_owned());
        let images = members(&named(pool, group)?, &pool.cluster().map_now()?).len();
        change(pool, group, GroupChange::RollBack { name })?;
        // Of each image: all of them are rolled back at once.
        for _ in 0..images {
            tell_done(progress, told);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_get_group_namespace(
    image: *mut c_void,
    id: u64,
    place: *mut SnapshotOf,
    bytes: usize,
) -> c_int {
    answer_done(|| {
        check_size::<SnapshotOf>(bytes)?;
        // SAFETY: what the program hands over.
        let image = unsafe { image_of(image) }?;
        let (_, info) = image.snapshot_that(|its, _| its == id)?;
        if !is_of_group(&info.name) {
            return Err(Errno(libc::EINVAL));
        }
        let found = image.group_that(|record| record.snapshot_of(&info.name).is_some())?;
        let found = found.ok_or(Errno(libc::ENOENT))?;
        let snapshot = found.record.snapshot_of(&info.name).ok_or(Errno(libc::ENOENT))?;
        let told = SnapshotOf {
            group_pool: i64::from(found.pool.0),
            group_name: owned(&found.name),
            group_snap_name: owned(&snapshot.name),
        };
        // SAFETY: as above.
        unsafe { tell(place, told) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_group_namespace_cleanup(place: *mut SnapshotOf, bytes: usize) -> c_int {
    answer_done(|| {
        check_size::<SnapshotOf>(bytes)?;
        // SAFETY: what the program hands over; its texts came from `owned`.
        unsafe {
            let of = place.as_mut().ok_or(Errno(libc::EINVAL))?;
            disowned(&mut of.group_name);
            disowned(&mut of.group_snap_name);
        }
        Ok(())
    })
}
