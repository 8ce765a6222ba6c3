//! Images that are moved: to another name of their pool, and to other attributes. What they hold stays where it is, so there is nothing
//! to be copied; the steps are those that programs go through, and the first one can be undone until the last.

use super::attributes::{Attributes, attributes_of, replace, text_of};
use super::options::wished;
use crate::cluster::Connected;
use crate::entry::{Progress, answer_done, answer_nothing, tell_done};
use crate::errno::{Answer, Errno};
use crate::image::id_text;
use crate::rados::Pool;
use crate::text::{disowned, given, owned, tell};
use cluster::{Metadata, VolumeChange};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// The note that says that an image is being moved.
const NOTE: &str = "migration";
/// What follows each part of it: no name has one.
const MARK: char = '\n';

/// How far it is, by the numbers of `rbd.h`.
const PREPARED: c_int = 2;
const EXECUTED: c_int = 4;

/// `rbd_image_migration_status_t`.
#[repr(C)]
pub struct Status {
    source_pool_id: i64,
    source_pool_namespace: *mut c_char,
    source_image_name: *mut c_char,
    source_image_id: *mut c_char,
    dest_pool_id: i64,
    dest_pool_namespace: *mut c_char,
    dest_image_name: *mut c_char,
    dest_image_id: *mut c_char,
    state: c_int,
    state_description: *mut c_char,
}

/// What is noted of an image that is being moved: how far that is, what it was called, and what it was.
struct Moving {
    state: c_int,
    source: String,
    before: Attributes,
}

impl Moving {
    fn text(&self) -> String {
        let before = self.before.notes().into_iter().map(|(key, value)| format!("{MARK}{key}={value}"));
        format!("{}{MARK}{}{}", self.state, self.source, before.collect::<String>())
    }

    fn of(text: &str) -> Option<Moving> {
        let mut parts = text.split(MARK);
        let (state, source) = (parts.next()?.parse().ok()?, parts.next()?.to_owned());
        let notes = parts.filter_map(|part| part.split_once('='));
        let notes = notes.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Some(Moving { state, source, before: Attributes::of(&notes) })
    }
}

/// The image of a pool that is being moved, by its full name.
fn moving(pool: &Pool, name: &str) -> Answer<(String, Moving)> {
    let volume = pool.name_of_known(name)?;
    let notes = pool.cluster().ask(Metadata { volume: volume.clone() })?;
    let moving = text_of(&notes, NOTE).and_then(Moving::of).ok_or(Errno(libc::EINVAL))?;
    Ok((volume, moving))
}

fn rename(cluster: &Connected, volume: String, new: &str) -> Answer<()> {
    cluster.change(VolumeChange::Rename { name: volume, new: new.to_owned() }).map(drop)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_migration_prepare(
    pool: *mut c_void,
    name: *const c_char,
    new_pool: *mut c_void,
    new: *const c_char,
    options: *mut c_void,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (pool, new_pool) = unsafe { (Pool::of(pool)?, Pool::of(new_pool)?) };
        // SAFETY: as above.
        let (name, new) = unsafe { (given(name)?, given(new)?) };
        let is_there = Arc::ptr_eq(pool.cluster(), new_pool.cluster())
            && (pool.id(), pool.namespace()) == (new_pool.id(), new_pool.namespace());
        if !is_there {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        base::names::check(new).map_err(|_| Errno(libc::EINVAL))?;
        let (cluster, volume) = (pool.cluster(), pool.name_of_known(name)?);
        let notes = cluster.ask(Metadata { volume: volume.clone() })?;
        if text_of(&notes, NOTE).is_some() {
            return Err(Errno(libc::EBUSY));
        }
        let before = attributes_of(cluster, &volume)?;
        // SAFETY: as above.
        let wanted = unsafe { wished(options, &before) }?;
        let Attributes { created, snapshots_max, overlap_max, .. } = before;
        let wanted = Attributes { created, snapshots_max, overlap_max, ..wanted };
        let moving = Moving { state: PREPARED, source: name.to_owned(), before: before.clone() };
        replace(cluster, &volume, NOTE, Some(moving.text()))?;
        let moved = wanted
            .take_over(cluster, &volume, &before)
            .and_then(|()| if name == new { Ok(()) } else { rename(cluster, volume.clone(), new) });
        if moved.is_err() {
            let _ = before.take_over(cluster, &volume, &wanted);
            let _ = replace(cluster, &volume, NOTE, None);
        }
        moved
    })
}

fn execute(pool: &Pool, name: &str) -> Answer<()> {
    let (volume, moving) = moving(pool, name)?;
    replace(pool.cluster(), &volume, NOTE, Some(Moving { state: EXECUTED, ..moving }.text()))
}

fn commit(pool: &Pool, name: &str) -> Answer<()> {
    let (volume, moving) = moving(pool, name)?;
    match moving.state {
        EXECUTED => replace(pool.cluster(), &volume, NOTE, None),
        _ => Err(Errno(libc::EINVAL)),
    }
}

fn abort(pool: &Pool, name: &str) -> Answer<()> {
    let (volume, moving) = moving(pool, name)?;
    let now = attributes_of(pool.cluster(), &volume)?;
    moving.before.take_over(pool.cluster(), &volume, &now)?;
    if moving.source != name {
        rename(pool.cluster(), volume, &moving.source)?;
    }
    replace(pool.cluster(), &pool.name_of(&moving.source)?, NOTE, None)
}

/// The steps, each with and without being told.
macro_rules! steps {
    ($($step:ident: $name:ident, $with_progress:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(pool: *mut c_void, name: *const c_char) -> c_int {
            // SAFETY: what the program hands over.
            unsafe { $with_progress(pool, name, None, std::ptr::null_mut()) }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $with_progress(
            pool: *mut c_void,
            name: *const c_char,
            progress: Progress,
            told: *mut c_void,
        ) -> c_int {
            answer_done(|| {
                // SAFETY: what the program hands over.
                unsafe { $step(Pool::of(pool)?, given(name)?) }?;
                tell_done(progress, told);
                Ok(())
            })
        }
    )*};
}

steps! {
    execute: rbd_migration_execute, rbd_migration_execute_with_progress;
    commit: rbd_migration_commit, rbd_migration_commit_with_progress;
    abort: rbd_migration_abort, rbd_migration_abort_with_progress;
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_migration_status(
    pool: *mut c_void,
    name: *const c_char,
    place: *mut Status,
    bytes: usize,
) -> c_int {
    answer_done(|| {
        if bytes != size_of::<Status>() {
            return Err(Errno(libc::ERANGE));
        }
        // SAFETY: what the program hands over.
        let (pool, name) = unsafe { (Pool::of(pool)?, given(name)?) };
        let (volume, moving) = moving(pool, name)?;
        let map = pool.cluster().map_now()?;
        let id = id_text(map.find_volume(&volume).map_err(|_| Errno(libc::ENOENT))?.0);
        let (pool, namespace) = (i64::from(pool.id().0), pool.namespace());
        let status = Status {
            source_pool_id: pool,
            source_pool_namespace: owned(&namespace),
            source_image_name: owned(&moving.source),
            source_image_id: owned(&id),
            dest_pool_id: pool,
            dest_pool_namespace: owned(&namespace),
            dest_image_name: owned(name),
            dest_image_id: owned(&id),
            state: moving.state,
            state_description: owned(""),
        };
        // SAFETY: as above.
        unsafe { tell(place, status) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_migration_status_cleanup(status: *mut Status) {
    answer_nothing(|| {
        // SAFETY: what the program hands over.
        let status = unsafe { status.as_mut() }.ok_or(Errno(libc::EINVAL))?;
        for text in [
            &mut status.source_pool_namespace,
            &mut status.source_image_name,
            &mut status.source_image_id,
            &mut status.dest_pool_namespace,
            &mut status.dest_image_name,
            &mut status.dest_image_id,
            &mut status.state_description,
        ] {
            // SAFETY: they came from `owned`.
            unsafe { disowned(text) };
        }
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_of_a_move_is_read_again() {
        let before = Attributes { order: 20, stripe_unit: 1 << 20, created: 5, ..Attributes::default() };
        let moving = Moving { state: PREPARED, source: "a".to_owned(), before: before.clone() };
        let read = Moving::of(&moving.text()).unwrap();
        assert_eq!((read.state, read.source.as_str(), read.before), (PREPARED, "a", before));
        assert!(Moving::of("").is_none() && Moving::of("2").is_none());
    }
}
