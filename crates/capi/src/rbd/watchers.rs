//! Who else has an image open.

use super::image::image_of;
use crate::entry::{answer_done, answer_nothing};
use crate::errno::Errno;
use crate::text::{disowned, owned, put_list};
use cluster::{WatchMode, WatchRecord, Watchers};
use std::ffi::{c_char, c_int, c_void};

/// `rbd_image_watcher_t`.
#[repr(C)]
pub struct Watcher {
    address: *mut c_char,
    id: i64,
    cookie: u64,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_watchers_list(
    image: *mut c_void,
    places: *mut Watcher,
    room: *mut usize,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let image = unsafe { image_of(image) }?;
        // Who only reads does not watch.
        let mut all = image.cluster.ask(Watchers { volume: image.volume })?;
        all.retain(|watcher| watcher.mode == WatchMode::ReadWrite);
        let watcher = |watcher: &WatchRecord| Watcher {
            address: owned(&watcher.description),
            id: (watcher.client.0 >> 1).cast_signed(),
            cookie: watcher.client.0,
        };
        // SAFETY: as above.
        unsafe { put_list(&all, watcher, places, room) }.map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_watchers_list_cleanup(watchers: *mut Watcher, count: usize) {
    answer_nothing(|| {
        for number in 0..count {
            // SAFETY: what the program hands over; their texts came from `owned`.
            unsafe { disowned(&mut watchers.add(number).as_mut().ok_or(Errno(libc::EINVAL))?.address) };
        }
        Ok(())
    });
}
