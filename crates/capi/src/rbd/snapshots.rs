//! Snapshots of an image.

use super::attributes::now;
use super::image::image_of;
use crate::entry::{Progress, answer_done, answer_int, answer_nothing, tell_done};
use crate::errno::{Answer, Errno};
use crate::image::{Image, Opening};
use crate::text::{disowned, given, given_if_any, owned, put_counted, tell};
use base::LayerId;
use base::map::SnapshotInfo;
use cluster::{VolumeChange, WantedSnapshot};
use libc::timespec;
use std::collections::BTreeSet;
use std::ffi::{c_char, c_int, c_void};

/// Flags of `rbd_snap_remove2`: it is unprotected first.
const UNPROTECT: u32 = 1;
/// Those of snapshots that are the image's own: not a group's, nor what the trash keeps.
pub(super) const OF_USER: c_int = 0;
/// Those of snapshots that a group's are made of.
const OF_GROUP: c_int = 1;
/// What names of such ones begin with.
const GROUP_NAME: &str = ".group.";

/// What stands for the image itself where a snapshot's number is asked for.
const NO_SNAPSHOT: u64 = -2i64 as u64;

/// `rbd_snap_info_t`.
#[repr(C)]
pub struct Snapshot {
    id: u64,
    size: u64,
    name: *mut c_char,
}

/// What programs know a snapshot by: a number that no other snapshot of the image has, or had.
pub(super) fn id_of(layer: LayerId) -> u64 {
    u64::from(layer.number()) + 1
}

/// Whether a snapshot is what a group's holds of its volume, by its name.
pub(super) fn is_of_group(name: &str) -> bool {
    name.starts_with(GROUP_NAME)
}

/// Whether a snapshot is the image's own, by its name.
///
/// # Errors
/// `ENOENT`: it is a group's, which has a name of its own.
fn check_own(name: &str) -> Answer<()> {
    if is_of_group(name) { Err(Errno(libc::ENOENT)) } else { Ok(()) }
}

impl Image {
    fn snapshots(&self) -> Answer<Vec<(u64, SnapshotInfo)>> {
        let map = self.cluster.map_now()?;
        let all = map.snapshots_of(self.volume).map(|(layer, info)| (id_of(layer), info.clone()));
        Ok(all.collect())
    }

    pub(super) fn snapshot_that(
        &self,
        is_it: impl Fn(u64, &SnapshotInfo) -> bool,
    ) -> Answer<(u64, SnapshotInfo)> {
        let found = self.snapshots()?.into_iter().find(|(id, info)| is_it(*id, info));
        found.ok_or(Errno(libc::ENOENT))
    }

    /// One that is the image's own: groups' are known by numbers alone.
    fn snapshot_named(&self, name: &str) -> Answer<(u64, SnapshotInfo)> {
        self.snapshot_that(|_, info| info.name == name && !is_of_group(name))
    }

    /// Has snapshots of it changed, as may be done with an image that may be changed.
    fn change_snapshots(&self, change: impl FnOnce(String) -> VolumeChange) -> Answer<()> {
        // A client stands still for a snapshot, and what is changed is waited for.
        self.check_may_wait()?;
        self.cluster.change(change(self.to_change()?)).map(drop)
    }

    /// Waits until it is shown, or not any more.
    fn wait_for_snapshot(&self, name: &str, is_there: bool) -> Answer<()> {
        let (volume, name) = (self.volume, name.to_owned());
        self.cluster.wait_for(move |map| map.snapshot_named(volume, &name).is_some() == is_there);
        self.catch_up()
    }

    pub(super) fn create_snapshot(&self, name: &str) -> Answer<()> {
        if base::names::check(name).is_err() || is_of_group(name) {
            return Err(Errno(libc::EINVAL));
        }
        if let Some(max) = self.attributes()?.snapshots_max
            && self.snapshots()?.len() as u64 >= max
        {
            return Err(Errno(libc::EDQUOT));
        }
        let at_unix_seconds = now();
        self.change_snapshots(|volume| VolumeChange::TakeSnapshots {
            wanted: vec![WantedSnapshot { volume, name: name.to_owned() }],
            at_unix_seconds,
        })?;
        self.wait_for_snapshot(name, true)?;
        // Programs expect that whoever makes one owns the image, unless somebody else does, who goes on undisturbed.
        if self.check_writable().is_ok() && self.owners().is_ok_and(|owners| owners.is_empty()) {
            // Another may have been faster; the snapshot is there.
            let _ = self.own(false);
        }
        Ok(())
    }

    pub(super) fn protect_snapshot(&self, name: &str, protected: bool) -> Answer<()> {
        self.to_change()?;
        let (_, info) = self.snapshot_named(name)?;
        match (info.protected, protected) {
            (true, true) => Err(Errno(libc::EBUSY)),
            (false, false) => Err(Errno(libc::EINVAL)),
            _ => self.change_snapshots(|volume| VolumeChange::ProtectSnapshot {
                volume,
                name: name.to_owned(),
                protected,
            }),
        }
    }

    /// Makes the volume what it was. It is not this program's meanwhile.
    fn roll_back(&self, name: &str) -> Answer<()> {
        self.check_writable()?;
        let (_, info) = self.snapshot_named(name)?;
        // Whoever owns it would have to give it up for that.
        if self.owned()?.is_none() && !self.owners()?.is_empty() {
            return Err(Errno(libc::EROFS));
        }
        let snapshot = name.to_owned();
        let back = |volume: &str| {
            let volume = volume.to_owned();
            self.cluster.change(VolumeChange::RollBack { volume, snapshot }).map(drop)
        };
        self.apart(back, |opening| opening)?;
        let (volume, bytes) = (self.volume, info.bytes);
        self.cluster.wait_for(move |map| map.volumes.get(&volume).is_none_or(|info| info.bytes == bytes));
        self.catch_up()
    }

    /// Reads that snapshot from now on, or the volume.
    fn read_snapshot(&self, snapshot: Option<String>) -> Answer<()> {
        self.apart(|_| Ok(()), |opening| Opening { snapshot, ..opening })
    }

    fn remove_snapshot(&self, name: &str, flags: u32) -> Answer<()> {
        check_own(name)?;
        if flags & UNPROTECT != 0 && self.snapshot_named(name)?.1.protected {
            self.protect_snapshot(name, false)?;
        }
        self.remove_snapshot_called(name)
    }

    fn remove_snapshot_called(&self, name: &str) -> Answer<()> {
        let names = BTreeSet::from([name.to_owned()]);
        self.change_snapshots(|volume| VolumeChange::RemoveSnapshots { volume, names })?;
        self.wait_for_snapshot(name, false)
    }

    /// Removes the snapshot of a number. A group's is removed with the group's snapshot, unless no group knows it.
    fn remove_snapshot_of(&self, id: u64) -> Answer<()> {
        let (_, info) = self.snapshot_that(|its, _| its == id)?;
        if is_of_group(&info.name)
            && self.group_that(|record| record.snapshot_of(&info.name).is_some())?.is_some()
        {
            return Err(Errno(libc::EBUSY));
        }
        self.remove_snapshot_called(&info.name)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_rollback(image: *mut c_void, name: *const c_char) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { image_of(image)?.roll_back(given(name)?) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_rollback_with_progress(
    image: *mut c_void,
    name: *const c_char,
    progress: Progress,
    told: *mut c_void,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        unsafe { image_of(image)?.roll_back(given(name)?) }?;
        tell_done(progress, told);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_set(image: *mut c_void, name: *const c_char) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        let image = image_of(image)?;
        match given_if_any(name)?.filter(|name| !name.is_empty()) {
            Some(name) => image.read_snapshot(Some(image.snapshot_named(name)?.1.name)),
            None => image.read_snapshot(None),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_set_by_id(image: *mut c_void, id: u64) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        let image = image_of(image)?;
        if id == NO_SNAPSHOT {
            return image.read_snapshot(None);
        }
        image.read_snapshot(Some(image.snapshot_that(|its, _| its == id)?.1.name))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_create(image: *mut c_void, name: *const c_char) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { image_of(image)?.create_snapshot(given(name)?) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_create2(
    image: *mut c_void,
    name: *const c_char,
    _flags: u32,
    progress: Progress,
    told: *mut c_void,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        unsafe { image_of(image)?.create_snapshot(given(name)?) }?;
        tell_done(progress, told);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_remove(image: *mut c_void, name: *const c_char) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { image_of(image)?.remove_snapshot(given(name)?, 0) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_remove2(
    image: *mut c_void,
    name: *const c_char,
    flags: u32,
    progress: Progress,
    told: *mut c_void,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        unsafe { image_of(image)?.remove_snapshot(given(name)?, flags) }?;
        tell_done(progress, told);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_remove_by_id(image: *mut c_void, id: u64) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        unsafe { image_of(image) }?.remove_snapshot_of(id)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_rename(
    image: *mut c_void,
    name: *const c_char,
    new: *const c_char,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (image, name, new) = unsafe { (image_of(image)?, given(name)?, given(new)?) };
        check_own(name)?;
        if is_of_group(new) {
            return Err(Errno(libc::EINVAL));
        }
        image.change_snapshots(|volume| VolumeChange::RenameSnapshot {
            volume,
            name: name.to_owned(),
            new: new.to_owned(),
        })?;
        image.wait_for_snapshot(new, true)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_protect(image: *mut c_void, name: *const c_char) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { image_of(image)?.protect_snapshot(given(name)?, true) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_unprotect(image: *mut c_void, name: *const c_char) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { image_of(image)?.protect_snapshot(given(name)?, false) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_is_protected(
    image: *mut c_void,
    name: *const c_char,
    place: *mut c_int,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        let (_, info) = image_of(image)?.snapshot_named(given(name)?)?;
        tell(place, c_int::from(info.protected))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_exists(image: *mut c_void, name: *const c_char, place: *mut bool) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        let found = image_of(image)?.snapshot_named(given(name)?);
        match found {
            Ok(_) => tell(place, true),
            Err(Errno(libc::ENOENT)) => tell(place, false),
            Err(error) => Err(error),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_list(image: *mut c_void, places: *mut Snapshot, room: *mut c_int) -> c_int {
    answer_int(|| {
        // SAFETY: what the program hands over.
        let (image, room) = unsafe { (image_of(image)?, room.as_mut().ok_or(Errno(libc::EINVAL))?) };
        let all = image.snapshots()?;
        // One without a name ends them.
        let needed = all.len() as c_int + 1;
        if *room < needed {
            *room = needed;
            return Err(Errno(libc::ERANGE));
        }
        for (number, (id, info)) in all.iter().enumerate() {
            let told = Snapshot { id: *id, size: info.bytes, name: owned(&info.name) };
            // SAFETY: as many fit.
            unsafe { tell(places.add(number), told) }?;
        }
        let last = Snapshot { id: 0, size: 0, name: std::ptr::null_mut() };
        // SAFETY: as above.
        unsafe { tell(places.add(all.len()), last) }?;
        Ok(all.len() as i64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_list_end(places: *mut Snapshot) {
    answer_nothing(|| {
        let mut place = places;
        // SAFETY: the list came from `rbd_snap_list`: one without a name ends it, and the others have theirs from `owned`.
        while let Some(snapshot) = unsafe { place.as_mut() }.filter(|snapshot| !snapshot.name.is_null()) {
            // SAFETY: as above.
            unsafe {
                disowned(&mut snapshot.name);
                place = place.add(1);
            }
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_get_id(image: *mut c_void, name: *const c_char, place: *mut u64) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { tell(place, image_of(image)?.snapshot_named(given(name)?)?.0) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_get_name(
    image: *mut c_void,
    id: u64,
    place: *mut c_char,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        let (_, info) = image_of(image)?.snapshot_that(|its, _| its == id)?;
        put_counted(&info.name, place, bytes)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_get_timestamp(image: *mut c_void, id: u64, place: *mut timespec) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        let (_, info) = image_of(image)?.snapshot_that(|its, _| its == id)?;
        tell(place, timespec { tv_sec: info.at_unix_seconds.cast_signed(), tv_nsec: 0 })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_get_namespace_type(
    image: *mut c_void,
    id: u64,
    place: *mut c_int,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        let (_, info) = image_of(image)?.snapshot_that(|its, _| its == id)?;
        tell(place, if is_of_group(&info.name) { OF_GROUP } else { OF_USER })
    })
}
