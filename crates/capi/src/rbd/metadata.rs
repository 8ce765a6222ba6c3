//! What people note beside an image.

use super::image::image_of;
use crate::entry::answer_done;
use crate::errno::{Answer, Errno};
use crate::image::Image;
use crate::text::{given, given_if_any, put_all, put_counted};
use cluster::{Metadata, VolumeChange};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::ops::Bound;

fn noted(image: &Image) -> Answer<BTreeMap<String, String>> {
    image.cluster.ask(Metadata { volume: image.name()? })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_metadata_get(
    image: *mut c_void,
    key: *const c_char,
    place: *mut c_char,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        let all = noted(image_of(image)?)?;
        put_counted(all.get(given(key)?).ok_or(Errno(libc::ENOENT))?, place, bytes)
    })
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
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (all, start) = unsafe { (noted(image_of(image)?)?, given_if_any(start)?) };
        let after = start.filter(|start| !start.is_empty()).map_or(Bound::Unbounded, Bound::Excluded);
        let most = if most == 0 { usize::MAX } else { usize::try_from(most).unwrap_or(usize::MAX) };
        let page = all.range::<str, _>((after, Bound::Unbounded)).take(most);
        // SAFETY: as above. Both are told how large they have to be.
        let (keys, values) = unsafe {
            (
                put_all(page.clone().map(|(key, _)| key.as_str()), keys, keys_bytes),
                put_all(page.map(|(_, value)| value.as_str()), values, values_bytes),
            )
        };
        keys.and(values).map(drop)
    })
}
