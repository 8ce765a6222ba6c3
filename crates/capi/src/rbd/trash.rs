//! Images that were put away: their names are free, what they hold is kept.

use super::attributes::now;
use crate::entry::{Progress, answer_done, answer_int, answer_nothing, tell_done};
use crate::errno::{Answer, Errno};
use crate::image::{id_of_text, id_text};
use crate::rados::Pool;
use crate::text::{disowned, given, given_if_any, owned, put_list, tell};
use base::VolumeId;
use base::map::{Trashed, VolumeInfo};
use cluster::VolumeChange;
use libc::time_t;
use std::ffi::{c_char, c_float, c_int, c_void};

/// Who put it there: a user.
const BY_USER: c_int = 0;

/// `rbd_trash_image_info_t`.
#[repr(C)]
pub struct Entry {
    id: *mut c_char,
    name: *mut c_char,
    source: c_int,
    deletion_time: time_t,
    deferment_end_time: time_t,
}

/// A volume in the trash.
struct Lying {
    id: VolumeId,
    info: VolumeInfo,
    trashed: Trashed,
}

impl Lying {
    /// Until when it is not to be removed.
    fn kept_until(&self) -> u64 {
        let Trashed { at_unix_seconds, keep_seconds, until_unix_seconds, guarded_until_unix_seconds } =
            self.trashed;
        let kept = at_unix_seconds.saturating_add(keep_seconds.unwrap_or(0));
        guarded_until_unix_seconds.or(until_unix_seconds).unwrap_or(kept)
    }

    fn entry(&self) -> Entry {
        Entry {
            id: owned(&id_text(self.id)),
            name: owned(&self.info.name),
            source: BY_USER,
            deletion_time: self.trashed.at_unix_seconds.cast_signed(),
            deferment_end_time: self.kept_until().cast_signed(),
        }
    }

    fn remove(&self, pool: &Pool) -> Answer<()> {
        let change = VolumeChange::Purge { id: self.id, generation: self.info.generation };
        pool.cluster().change(change).map(drop)
    }
}

/// What lies there of a pool and namespace.
fn listed(pool: &Pool) -> Answer<Vec<Lying>> {
    let (map, namespace) = (pool.cluster().map_now()?, pool.namespace());
    let own = map.trash().filter(|(_, info, _)| info.pool == pool.id() && info.namespace == namespace);
    Ok(own.map(|(id, info, trashed)| Lying { id, info: info.clone(), trashed }).collect())
}

fn found(pool: &Pool, id: &str) -> Answer<Lying> {
    let wanted = id_of_text(id)?;
    listed(pool)?.into_iter().find(|lying| lying.id == wanted).ok_or(Errno(libc::ENOENT))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_trash_move(pool: *mut c_void, name: *const c_char, delay_seconds: u64) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (pool, name) = unsafe { (Pool::of(pool)?, given(name)?) };
        // What is kept for some time is removed after that; images are kept until somebody removes them.
        let keep_seconds = None;
        let at_unix_seconds = now();
        let guarded_until_unix_seconds = Some(at_unix_seconds.saturating_add(delay_seconds));
        let name = pool.name_of(name)?;
        let change = VolumeChange::Trash { name, at_unix_seconds, keep_seconds, guarded_until_unix_seconds };
        pool.cluster().change(change).map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_trash_get(pool: *mut c_void, id: *const c_char, place: *mut Entry) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { tell(place, found(Pool::of(pool)?, given(id)?)?.entry()) })
}

unsafe fn clean_up(entry: *mut Entry) -> Answer<()> {
    // SAFETY: what the program hands over.
    let entry = unsafe { entry.as_mut() }.ok_or(Errno(libc::EINVAL))?;
    // SAFETY: they came from `owned`.
    unsafe {
        disowned(&mut entry.id);
        disowned(&mut entry.name);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_trash_get_cleanup(entry: *mut Entry) {
    // SAFETY: what the program hands over.
    answer_nothing(|| unsafe { clean_up(entry) });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_trash_list(pool: *mut c_void, places: *mut Entry, room: *mut usize) -> c_int {
    answer_int(|| {
        // SAFETY: what the program hands over.
        let all = listed(unsafe { Pool::of(pool) }?)?;
        // SAFETY: as above.
        unsafe { put_list(&all, Lying::entry, places, room) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_trash_list_cleanup(entries: *mut Entry, count: usize) {
    // SAFETY: what the program hands over.
    answer_nothing(|| (0..count).try_for_each(|number| unsafe { clean_up(entries.add(number)) }));
}

unsafe fn remove(pool: *mut c_void, id: *const c_char, by_force: bool) -> Answer<()> {
    // SAFETY: as the caller promises.
    let (pool, id) = unsafe { (Pool::of(pool)?, given(id)?) };
    let lying = found(pool, id)?;
    if !by_force && lying.kept_until() > now() {
        return Err(Errno(libc::EPERM));
    }
    lying.remove(pool)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_trash_remove(pool: *mut c_void, id: *const c_char, by_force: bool) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { remove(pool, id, by_force) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_trash_remove_with_progress(
    pool: *mut c_void,
    id: *const c_char,
    by_force: bool,
    progress: Progress,
    told: *mut c_void,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        unsafe { remove(pool, id, by_force) }?;
        tell_done(progress, told);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_trash_restore(
    pool: *mut c_void,
    id: *const c_char,
    name: *const c_char,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (pool, id, name) = unsafe { (Pool::of(pool)?, given(id)?, given_if_any(name)?) };
        let name = name.filter(|name| !name.is_empty()).map(str::to_owned);
        pool.cluster().change(VolumeChange::Restore { id: found(pool, id)?.id, name }).map(drop)
    })
}

/// Removes what need not be kept any more at a time; 0: now.
unsafe fn purge(pool: *mut c_void, at: time_t, threshold: c_float) -> Answer<()> {
    // By how full the pool is nobody asks yet.
    if threshold >= 0.0 {
        return Err(Errno(libc::EOPNOTSUPP));
    }
    // SAFETY: as the caller promises.
    let pool = unsafe { Pool::of(pool) }?;
    let at = if at > 0 { at.cast_unsigned() } else { now() };
    let all = listed(pool)?;
    // One that cannot be removed keeps none of the others.
    let removed = all.iter().filter(|lying| lying.kept_until() <= at).map(|lying| lying.remove(pool));
    removed.fold(Ok(()), Result::and)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_trash_purge(pool: *mut c_void, at: time_t, threshold: c_float) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { purge(pool, at, threshold) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_trash_purge_with_progress(
    pool: *mut c_void,
    at: time_t,
    threshold: c_float,
    progress: Progress,
    told: *mut c_void,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        unsafe { purge(pool, at, threshold) }?;
        tell_done(progress, told);
        Ok(())
    })
}
