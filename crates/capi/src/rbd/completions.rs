//! `rbd_completion_t`: what a program waits for.

use crate::completion::{Callback, Completion, release, share};
use crate::entry::{answer, answer_done, answer_int, answer_nothing};
use crate::text::{check, tell};
use std::ffi::{c_int, c_void};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_aio_create_completion(
    argument: *mut c_void,
    callback: Option<Callback>,
    place: *mut *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        check(place)?;
        tell(place, Completion::new(callback, argument).into_handle())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_aio_is_complete(completion: *mut c_void) -> c_int {
    // SAFETY: what the program hands over.
    answer_int(|| Ok(i64::from(unsafe { share(completion) }?.is_done())))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_aio_wait_for_complete(completion: *mut c_void) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { share(completion) }?.wait().map(drop))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_aio_get_return_value(completion: *mut c_void) -> isize {
    // SAFETY: what the program hands over.
    answer(|| Ok(unsafe { share(completion) }?.result())) as isize
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_aio_get_arg(completion: *mut c_void) -> *mut c_void {
    let mut argument = std::ptr::null_mut();
    answer_nothing(|| {
        // SAFETY: what the program hands over.
        argument = unsafe { share(completion) }?.argument();
        Ok(())
    });
    argument
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_aio_release(completion: *mut c_void) {
    // SAFETY: what the program hands over.
    answer_nothing(|| unsafe { release(completion) });
}
