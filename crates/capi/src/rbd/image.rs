//! `rbd_image_t`: an image that is open.

use crate::completion::{Completion, share};
use crate::entry::{answer_done, answer_int, without_signals};
use crate::errno::{Answer, Errno};
use crate::image::{Image, Opening, STACK_BYTES};
use crate::rados::Pool;
use crate::text::{check, given, given_if_any, tell};
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// How it is told that operations have ended, by the numbers of `rbd.h`.
const OF_PIPE: c_int = 1;
const OF_EVENTFD: c_int = 2;

/// The image that a program knows by that.
///
/// # Errors
/// `EINVAL`: it is null.
///
/// # Safety
/// It came from `rbd_open` or one of its kin, and was not closed.
pub(super) unsafe fn image_of<'a>(handle: *mut c_void) -> Answer<&'a Image> {
    // SAFETY: as the caller promises.
    unsafe { handle.cast::<Image>().as_ref() }.ok_or(Errno(libc::EINVAL))
}

/// How what is wanted is named.
#[derive(Clone, Copy)]
enum By {
    Name,
    Id,
}

/// What is to be opened, by what the program hands over.
unsafe fn opening(
    pool: *mut c_void,
    text: *const c_char,
    snapshot: *const c_char,
    by: By,
    is_read_only: bool,
) -> Answer<(Arc<crate::cluster::Connected>, Opening)> {
    // SAFETY: as the caller promises.
    let (pool, text, snapshot) = unsafe { (Pool::of(pool)?, given(text)?, given_if_any(snapshot)?) };
    let volume = match by {
        By::Name => pool.name_of_known(text)?,
        By::Id => pool.name_of_id(text)?,
    };
    let snapshot = snapshot.filter(|name| !name.is_empty()).map(str::to_owned);
    Ok((pool.cluster().clone(), Opening { volume, snapshot, is_read_only }))
}

unsafe fn open(
    pool: *mut c_void,
    text: *const c_char,
    place: *mut *mut c_void,
    snapshot: *const c_char,
    (by, is_read_only): (By, bool),
) -> c_int {
    answer_done(|| {
        check(place)?;
        // SAFETY: what the program hands over.
        let (cluster, opening) = unsafe { opening(pool, text, snapshot, by, is_read_only) }?;
        let image = Image::open(cluster, opening)?;
        // SAFETY: as above.
        unsafe { tell(place, Box::into_raw(Box::new(image)).cast()) }
    })
}

/// Does it on a thread of its own; the completion ends with what came of it.
fn apart(completion: Arc<Completion>, work: impl FnOnce() -> Answer<i64> + Send + 'static) -> Answer<()> {
    let run = move || completion.end_with(work());
    let started = without_signals(|| {
        std::thread::Builder::new().name("librbd-apart".to_owned()).stack_size(STACK_BYTES).spawn(run)
    });
    started.map(drop).map_err(|_| Errno(libc::EAGAIN))
}

/// A place of the program's, for another thread.
struct Place(*mut *mut c_void);
// SAFETY: the program leaves it to this library until the completion has ended.
unsafe impl Send for Place {}

unsafe fn open_apart(
    pool: *mut c_void,
    text: *const c_char,
    place: *mut *mut c_void,
    snapshot: *const c_char,
    completion: *mut c_void,
    (by, is_read_only): (By, bool),
) -> c_int {
    answer_done(|| {
        check(place)?;
        // SAFETY: what the program hands over.
        let (cluster, opening) = unsafe { opening(pool, text, snapshot, by, is_read_only) }?;
        // SAFETY: as above.
        let completion = unsafe { share(completion) }?;
        let place = Place(place);
        apart(completion, move || {
            let Place(place) = { place };
            let image = Image::open(cluster, opening)?;
            // SAFETY: as above.
            unsafe { tell(place, Box::into_raw(Box::new(image)).cast()) }.map(|()| 0)
        })
    })
}

/// The four ways of opening, at once and apart.
macro_rules! openings {
    ($($open:ident, $open_apart:ident: $how:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $open(
            pool: *mut c_void,
            text: *const c_char,
            place: *mut *mut c_void,
            snapshot: *const c_char,
        ) -> c_int {
            // SAFETY: what the program hands over.
            unsafe { open(pool, text, place, snapshot, $how) }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $open_apart(
            pool: *mut c_void,
            text: *const c_char,
            place: *mut *mut c_void,
            snapshot: *const c_char,
            completion: *mut c_void,
        ) -> c_int {
            // SAFETY: what the program hands over.
            unsafe { open_apart(pool, text, place, snapshot, completion, $how) }
        }
    )*};
}

openings! {
    rbd_open, rbd_aio_open: (By::Name, false);
    rbd_open_by_id, rbd_aio_open_by_id: (By::Id, false);
    rbd_open_read_only, rbd_aio_open_read_only: (By::Name, true);
    rbd_open_by_id_read_only, rbd_aio_open_by_id_read_only: (By::Id, true);
}

/// An image of the program's, for another thread.
struct Handle(*mut c_void);
// SAFETY: the program has done with it.
unsafe impl Send for Handle {}

/// Closes an image. One that cannot be closed is as it was.
unsafe fn close(Handle(image): Handle) -> Answer<i64> {
    // SAFETY: as the caller promises. Callbacks may still want something of it until it has stopped.
    let open = unsafe { image_of(image) }?;
    open.stop()?;
    if open.was_changed() {
        // Where that is not heard soon it is known as it was before.
        let _ = open.note_modified();
    }
    // SAFETY: it came from `open`, and nobody uses it any more.
    drop(unsafe { Box::from_raw(image.cast::<Image>()) });
    Ok(0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_close(image: *mut c_void) -> c_int {
    // SAFETY: what the program hands over.
    answer_int(|| unsafe { close(Handle(image)) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_aio_close(image: *mut c_void, completion: *mut c_void) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        unsafe { image_of(image) }?;
        // SAFETY: as above.
        let completion = unsafe { share(completion) }?;
        let image = Handle(image);
        apart(completion, move || {
            let image = { image };
            // SAFETY: as above.
            unsafe { close(image) }
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_set_image_notification(
    handle: *mut c_void,
    descriptor: c_int,
    kind: c_int,
) -> c_int {
    answer_done(|| {
        let is_a_pipe = match kind {
            OF_PIPE => true,
            OF_EVENTFD => false,
            _ => return Err(Errno(libc::EINVAL)),
        };
        // SAFETY: what the program hands over.
        unsafe { image_of(handle) }?.notify(descriptor, is_a_pipe);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_poll_io_events(
    handle: *mut c_void,
    places: *mut *mut c_void,
    count: c_int,
) -> c_int {
    answer_int(|| {
        let count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or(Errno(libc::EINVAL))?;
        if places.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: what the program hands over.
        let (image, places) = unsafe { (image_of(handle)?, std::slice::from_raw_parts_mut(places, count)) };
        Ok(image.take_ended(places) as i64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_invalidate_cache(handle: *mut c_void) -> c_int {
    // SAFETY: what the program hands over. There is no cache.
    answer_done(|| unsafe { image_of(handle) }.map(drop))
}
