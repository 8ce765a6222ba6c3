//! Options of images that are said beside a pool or an image: in place of what is said for all. They are told, and heeded by nobody.

use super::image::image_of;
use super::metadata::Notes;
use crate::configuration::options_of_images;
use crate::entry::{answer_done, answer_nothing};
use crate::errno::{Answer, Errno};
use crate::rados::Pool;
use crate::text::{disowned, owned, put_list};
use cluster::PlaceMetadata;
use std::ffi::{c_char, c_int, c_void};

/// What the key of a note begins with that is such an option.
const NOTE: &str = "conf_";
/// Where an option is said, by the numbers of `rbd.h`.
const FOR_ALL: c_int = 0;
const BESIDE_POOL: c_int = 1;
const BESIDE_IMAGE: c_int = 2;

/// `rbd_config_option_t`.
#[repr(C)]
pub struct Override {
    name: *mut c_char,
    value: *mut c_char,
    source: c_int,
}

/// Puts all options, each as the last of those says that says something.
unsafe fn put(said: &[(c_int, Notes)], places: *mut Override, room: *mut c_int) -> Answer<()> {
    let value = |name: &str, usual: &str| {
        let by =
            |(source, notes): &(c_int, Notes)| Some((*source, notes.get(&format!("{NOTE}{name}"))?.clone()));
        said.iter().rev().find_map(by).unwrap_or_else(|| (FOR_ALL, usual.to_owned()))
    };
    let all: Vec<_> = options_of_images().map(|(name, usual)| (name, value(name, usual))).collect();
    let made = |(name, (source, value)): &(&str, (c_int, String))| Override {
        name: owned(name),
        value: owned(value),
        source: *source,
    };
    // SAFETY: as the caller promises.
    let count = unsafe { room.as_mut() }.ok_or(Errno(libc::EINVAL))?;
    let mut places_there = usize::try_from(*count).map_err(|_| Errno(libc::EINVAL))?;
    // SAFETY: as above.
    let put = unsafe { put_list(&all, made, places, &raw mut places_there) };
    *count = places_there as c_int;
    put.map(drop)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_config_pool_list(
    pool: *mut c_void,
    places: *mut Override,
    room: *mut c_int,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { put(&[(BESIDE_POOL, Pool::of(pool)?.notes()?)], places, room) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_config_image_list(
    image: *mut c_void,
    places: *mut Override,
    room: *mut c_int,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        let image = image_of(image)?;
        let of_pool = image.cluster.ask(PlaceMetadata { place: image.place()?.to_string() })?;
        put(&[(BESIDE_POOL, of_pool), (BESIDE_IMAGE, image.notes()?)], places, room)
    })
}

unsafe fn clean_up(overrides: *mut Override, count: c_int) {
    answer_nothing(|| {
        for number in 0..usize::try_from(count).unwrap_or(0) {
            // SAFETY: what the program hands over; their texts came from `owned`.
            unsafe {
                let one = overrides.add(number).as_mut().ok_or(Errno(libc::EINVAL))?;
                disowned(&mut one.name);
                disowned(&mut one.value);
            }
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_config_pool_list_cleanup(overrides: *mut Override, count: c_int) {
    // SAFETY: what the program hands over.
    unsafe { clean_up(overrides, count) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_config_image_list_cleanup(overrides: *mut Override, count: c_int) {
    // SAFETY: what the program hands over.
    unsafe { clean_up(overrides, count) }
}
