//! What is known of an image that is open.

use super::attributes::{self, Attributes, CHANGEABLE, FEATURES};
use super::image::image_of;
use crate::entry::{answer, answer_done, answer_nothing};
use crate::errno::{Answer, Errno};
use crate::image::{Image, id_text};
use crate::text::{given, put, put_all, put_counted, tell};
use libc::timespec;
use std::ffi::{c_char, c_int, c_void};

const BLOCK_NAME_BYTES: usize = 24;
const IMAGE_NAME_BYTES: usize = 96;
/// The bit of operations that says that an image is in a group.
const GROUP: u64 = 1 << 2;

/// `rbd_image_info_t`.
#[repr(C)]
pub struct Info {
    size: u64,
    obj_size: u64,
    num_objs: u64,
    order: c_int,
    block_name_prefix: [c_char; BLOCK_NAME_BYTES],
    parent_pool: i64,
    parent_name: [c_char; IMAGE_NAME_BYTES],
}

/// What an image's objects are called, to who asks.
fn prefix_of(image: &Image) -> String {
    format!("rbd_data.{}", id_text(image.volume))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_stat(image: *mut c_void, info: *mut Info, _bytes: usize) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let image = unsafe { image_of(image) }?;
        // What it says of its size is not heeded: Ceph's library does not, and some programs give that of a pointer.
        let (size, order) = (image.bytes_now()?, image.attributes()?.order);
        let mut prefix = [0; BLOCK_NAME_BYTES];
        for (place, byte) in prefix.iter_mut().zip(prefix_of(image).bytes().take(BLOCK_NAME_BYTES - 1)) {
            *place = byte as c_char;
        }
        let told = Info {
            size,
            obj_size: 1 << order,
            num_objs: size.div_ceil(1 << order),
            order: order as c_int,
            block_name_prefix: prefix,
            parent_pool: -1,
            parent_name: [0; IMAGE_NAME_BYTES],
        };
        // SAFETY: as above.
        unsafe { tell(info, told) }
    })
}

/// The version of the interface that this follows: that of Ceph 16.
const VERSION: [c_int; 3] = [1, 16, 0];

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_version(major: *mut c_int, minor: *mut c_int, extra: *mut c_int) {
    for (place, number) in [major, minor, extra].into_iter().zip(VERSION) {
        // SAFETY: the program's, or null. Who asks for one alone gets that.
        answer_nothing(|| unsafe { tell(place, number) });
    }
}

/// Numbers that are asked of an image.
macro_rules! numbers {
    ($($name:ident: $kind:ty = |$image:ident| $value:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(image: *mut c_void, place: *mut $kind) -> c_int {
            // SAFETY: what the program hands over.
            answer_done(|| unsafe {
                let $image = image_of(image)?;
                tell(place, $value)
            })
        }
    )*};
}

numbers! {
    rbd_get_size: u64 = |image| image.bytes_now()?;
    rbd_get_features: u64 = |image| image.attributes()?.features;
    rbd_get_op_features: u64 = |image| if image.group()?.is_some() { GROUP } else { 0 };
    rbd_get_flags: u64 = |_image| 0;
    rbd_get_stripe_unit: u64 = |image| image.attributes()?.stripe_unit;
    rbd_get_stripe_count: u64 = |image| image.attributes()?.stripe_count;
    rbd_get_old_format: u8 = |_image| 0;
    rbd_snap_get_limit: u64 = |image| image.attributes()?.snapshots_max.unwrap_or(u64::MAX);
    rbd_get_create_timestamp: timespec = |image| image.time_of(|known| known.created)?;
    rbd_get_access_timestamp: timespec = |image| image.time_of(|known| known.modified)?;
    rbd_get_modify_timestamp: timespec = |image| image.time_of(|known| known.modified)?;
}

impl Image {
    /// A time that is noted of it.
    ///
    /// # Errors
    /// `ENOENT`: it is not.
    fn time_of(&self, which: fn(&Attributes) -> u64) -> Answer<timespec> {
        match which(&self.attributes()?) {
            0 => Err(Errno(libc::ENOENT)),
            seconds => Ok(timespec { tv_sec: seconds.cast_signed(), tv_nsec: 0 }),
        }
    }

    /// Has features, or has them no more.
    fn update_features(&self, features: u64, is_had: bool) -> Answer<()> {
        self.check_writable()?;
        attributes::check(features)?;
        if features == 0 || features & !CHANGEABLE != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let had = self.attributes()?.features;
        self.note("features", Some(if is_had { had | features } else { had & !features }))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_update_features(image: *mut c_void, features: u64, is_had: u8) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { image_of(image) }?.update_features(features, is_had != 0))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_set_limit(image: *mut c_void, limit: u64) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| {
        unsafe { image_of(image) }?.note("snapshots_max", Some(limit).filter(|max| *max != u64::MAX))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_get_name(image: *mut c_void, place: *mut c_char, bytes: *mut usize) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { put_counted(&image_of(image)?.info()?.name, place, bytes) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_get_id(image: *mut c_void, place: *mut c_char, bytes: usize) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { put(&id_text(image_of(image)?.volume), place, bytes) }.map(drop))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_get_block_name_prefix(
    image: *mut c_void,
    place: *mut c_char,
    bytes: usize,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { put(&prefix_of(image_of(image)?), place, bytes) }.map(drop))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_get_data_pool_id(image: *mut c_void) -> i64 {
    // SAFETY: what the program hands over.
    answer(|| Ok(i64::from(unsafe { image_of(image) }?.info()?.pool.0)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_features_to_string(
    features: u64,
    place: *mut c_char,
    bytes: *mut usize,
) -> c_int {
    answer_done(|| {
        if features & !FEATURES.iter().map(|(_, bit)| bit).sum::<u64>() != 0 {
            return Err(Errno(libc::EINVAL));
        }
        let names = FEATURES.iter().filter(|(_, bit)| features & bit != 0).map(|(name, _)| *name);
        let text = names.collect::<Vec<_>>().join(",");
        // SAFETY: what the program hands over.
        unsafe { put_all(std::iter::once(text.as_str()), place, bytes) }.map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_features_from_string(text: *const c_char, place: *mut u64) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let text = unsafe { given(text) }?;
        let bit = |name: &str| -> Answer<u64> {
            let found = FEATURES.iter().find(|(known, _)| *known == name.trim());
            found.map(|(_, bit)| *bit).ok_or(Errno(libc::EINVAL))
        };
        if let Ok(features) = text.trim().parse() {
            // SAFETY: as above.
            return unsafe { tell(place, features) };
        }
        let features = text.split(',').map(bit).try_fold(0, |all, bit| Ok::<u64, Errno>(all | bit?))?;
        // SAFETY: as above.
        unsafe { tell(place, features) }
    })
}
