//! What people note beside an image or a pool.

use super::attributes::is_own;
use super::image::image_of;
use crate::entry::answer_done;
use crate::errno::{Answer, Errno};
use crate::image::Image;
use crate::rados::Pool;
use crate::text::{given, given_if_any, put_all, put_counted};
use cluster::{Metadata, PlaceMetadata, VolumeChange};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::ops::Bound;

/// What is noted, by key.
pub(super) type Notes = BTreeMap<String, String>;

impl Image {
    /// What is noted beside it, but for what is of no account for programs.
    pub(super) fn notes(&self) -> Answer<Notes> {
        let mut notes = self.cluster.ask(Metadata { volume: self.name()? })?;
        notes.retain(|key, _| !is_own(key));
        Ok(notes)
    }
}

impl Pool {
    /// What is noted beside it, or its namespace.
    pub(super) fn notes(&self) -> Answer<Notes> {
        self.cluster().ask(PlaceMetadata { place: self.place()?.to_string() })
    }
}

/// Where a program wants something, and how large that is.
type Place = (*mut c_char, *mut usize);

unsafe fn put_one(notes: &Notes, key: *const c_char, (place, bytes): Place) -> Answer<()> {
    // SAFETY: as the caller promises.
    unsafe { put_counted(notes.get(given(key)?).ok_or(Errno(libc::ENOENT))?, place, bytes) }
}

/// Puts so many of them, in order, from behind a key on; 0: all.
unsafe fn put_some(
    notes: &Notes,
    start: *const c_char,
    most: u64,
    (keys, keys_bytes): Place,
    (values, values_bytes): Place,
) -> Answer<()> {
    // SAFETY: as the caller promises.
    let start = unsafe { given_if_any(start) }?;
    let after = start.filter(|start| !start.is_empty()).map_or(Bound::Unbounded, Bound::Excluded);
    let most = if most == 0 { usize::MAX } else { usize::try_from(most).unwrap_or(usize::MAX) };
    let page = notes.range::<str, _>((after, Bound::Unbounded)).take(most);
    // SAFETY: as above. Both are told how large they have to be.
    let (keys, values) = unsafe {
        (
            put_all(page.clone().map(|(key, _)| key.as_str()), keys, keys_bytes),
            put_all(page.map(|(_, value)| value.as_str()), values, values_bytes),
        )
    };
    keys.and(values).map(drop)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_metadata_get(
    image: *mut c_void,
    key: *const c_char,
    place: *mut c_char,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { put_one(&image_of(image)?.notes()?, key, (place, bytes)) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_metadata_set(
    image: *mut c_void,
    key: *const c_char,
    value: *const c_char,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (image, key, value) = unsafe { (image_of(image)?, given(key)?, given(value)?) };
        if is_own(key) {
            return Err(Errno(libc::EINVAL));
        }
        let volume = image.to_change()?;
        let change = VolumeChange::SetMetadata { volume, key: key.to_owned(), value: value.to_owned() };
        image.cluster.change(change).map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_metadata_remove(image: *mut c_void, key: *const c_char) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (image, key) = unsafe { (image_of(image)?, given(key)?.to_owned()) };
        if is_own(&key) {
            return Err(Errno(libc::ENOENT));
        }
        image.cluster.change(VolumeChange::RemoveMetadata { volume: image.to_change()?, key }).map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_metadata_list(
    image: *mut c_void,
    start: *const c_char,
    most: u64,
    keys: *mut c_char,
    keys_bytes: *mut usize,
    values: *mut c_char,
    values_bytes: *mut usize,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        put_some(&image_of(image)?.notes()?, start, most, (keys, keys_bytes), (values, values_bytes))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_pool_metadata_get(
    pool: *mut c_void,
    key: *const c_char,
    place: *mut c_char,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { put_one(&Pool::of(pool)?.notes()?, key, (place, bytes)) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_pool_metadata_set(
    pool: *mut c_void,
    key: *const c_char,
    value: *const c_char,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (pool, key, value) = unsafe { (Pool::of(pool)?, given(key)?, given(value)?) };
        let place = pool.place()?.to_string();
        let change = VolumeChange::SetPlaceMetadata { place, key: key.to_owned(), value: value.to_owned() };
        pool.cluster().change(change).map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_pool_metadata_remove(pool: *mut c_void, key: *const c_char) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (pool, key) = unsafe { (Pool::of(pool)?, given(key)?.to_owned()) };
        let change = VolumeChange::RemovePlaceMetadata { place: pool.place()?.to_string(), key };
        pool.cluster().change(change).map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_pool_metadata_list(
    pool: *mut c_void,
    start: *const c_char,
    most: u64,
    keys: *mut c_char,
    keys_bytes: *mut usize,
    values: *mut c_char,
    values_bytes: *mut usize,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        put_some(&Pool::of(pool)?.notes()?, start, most, (keys, keys_bytes), (values, values_bytes))
    })
}
