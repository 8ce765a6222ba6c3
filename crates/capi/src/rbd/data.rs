//! What is done with an image's bytes.

use super::image::image_of;
use crate::completion::{Completion, share};
use crate::entry::{answer, answer_done, answer_int};
use crate::errno::{Answer, Errno};
use crate::image::Image;
use crate::memory::Memory;
use libc::iovec;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

/// The longest operation at once, in bytes: what an answer can tell.
const BYTES_MAX: u64 = i32::MAX as u64;

fn check_length(length: u64) -> Answer<u64> {
    if length <= BYTES_MAX { Ok(length) } else { Err(Errno(libc::EINVAL)) }
}

/// Has it done, and waits; the answer is how many bytes it was.
unsafe fn wait(
    handle: *mut c_void,
    begin: impl FnOnce(&Image, Arc<Completion>) -> Answer<()>,
) -> Answer<i64> {
    // SAFETY: as the caller promises.
    let image = unsafe { image_of(handle) }?;
    image.wait_for(|completion| begin(image, completion))
}

/// Has it done; the program's completion ends then.
unsafe fn leave(
    handle: *mut c_void,
    completion: *mut c_void,
    begin: impl FnOnce(&Image, Arc<Completion>) -> Answer<()>,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (image, completion) = unsafe { (image_of(handle)?, share(completion)?) };
        begin(image, completion.clone()).or_else(|error| image.refuse(error, completion))
    })
}

fn read(image: &Image, offset: u64, memory: Memory, completion: Arc<Completion>) -> Answer<()> {
    check_length(memory.length() as u64)?;
    image.read(offset, memory, completion)
}

/// What an operation ends with that was so long: where somebody waits, with that.
fn counted(is_counted: bool) -> impl FnOnce(u64) -> i64 {
    move |length| if is_counted { length as i64 } else { 0 }
}

/// Writes, and ends with 0, or with how many bytes it was where somebody waits.
fn write(
    image: &Image,
    offset: u64,
    memory: Memory,
    is_counted: bool,
    completion: Arc<Completion>,
) -> Answer<()> {
    let length = check_length(memory.length() as u64)?;
    image.write((offset, length), memory, counted(is_counted), completion)
}

fn zero(
    image: &Image,
    (offset, length): (u64, u64),
    is_counted: bool,
    completion: Arc<Completion>,
) -> Answer<()> {
    let length = if is_counted { check_length(length)? } else { length };
    image.zero((offset, length), counted(is_counted), completion)
}

/// Writes the same again and again. A range that is no multiple of it is refused.
fn write_same(
    image: &Image,
    (offset, length): (u64, u64),
    memory: Memory,
    is_counted: bool,
    completion: Arc<Completion>,
) -> Answer<()> {
    if memory.length() == 0 || !check_length(length)?.is_multiple_of(memory.length() as u64) {
        return Err(Errno(libc::EINVAL));
    }
    image.write((offset, length), memory, |_| counted(is_counted)(length), completion)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_read(
    handle: *mut c_void,
    offset: u64,
    length: usize,
    bytes: *mut c_char,
) -> isize {
    // SAFETY: what the program hands over.
    answer(|| unsafe {
        let memory = Memory::at(bytes.cast(), length)?;
        wait(handle, |image, completion| read(image, offset, memory, completion))
    }) as isize
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_read2(
    handle: *mut c_void,
    offset: u64,
    length: usize,
    bytes: *mut c_char,
    _flags: c_int,
) -> isize {
    // SAFETY: what the program hands over.
    unsafe { rbd_read(handle, offset, length, bytes) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_write(
    handle: *mut c_void,
    offset: u64,
    length: usize,
    bytes: *const c_char,
) -> isize {
    // SAFETY: what the program hands over.
    answer(|| unsafe {
        let memory = Memory::at(bytes.cast_mut().cast(), length)?;
        wait(handle, |image, completion| write(image, offset, memory, true, completion))
    }) as isize
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_write2(
    handle: *mut c_void,
    offset: u64,
    length: usize,
    bytes: *const c_char,
    _flags: c_int,
) -> isize {
    // SAFETY: what the program hands over.
    unsafe { rbd_write(handle, offset, length, bytes) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_discard(handle: *mut c_void, offset: u64, length: u64) -> c_int {
    // SAFETY: what the program hands over.
    answer_int(|| unsafe {
        wait(handle, |image, completion| zero(image, (offset, length), true, completion))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_write_zeroes(
    handle: *mut c_void,
    offset: u64,
    length: usize,
    _zero_flags: c_int,
    _flags: c_int,
) -> isize {
    // SAFETY: what the program hands over.
    answer(|| unsafe {
        wait(handle, |image, completion| zero(image, (offset, length as u64), true, completion))
    }) as isize
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_writesame(
    handle: *mut c_void,
    offset: u64,
    length: usize,
    bytes: *const c_char,
    pattern_bytes: usize,
    _flags: c_int,
) -> isize {
    // SAFETY: what the program hands over.
    answer(|| unsafe {
        let memory = Memory::at(bytes.cast_mut().cast(), pattern_bytes)?;
        wait(handle, |image, completion| write_same(image, (offset, length as u64), memory, true, completion))
    }) as isize
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_flush(handle: *mut c_void) -> c_int {
    // SAFETY: what the program hands over.
    answer_int(|| unsafe { wait(handle, Image::flush) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_aio_read(
    handle: *mut c_void,
    offset: u64,
    length: usize,
    bytes: *mut c_char,
    completion: *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe {
        leave(handle, completion, |image, completion| {
            read(image, offset, Memory::at(bytes.cast(), length)?, completion)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_aio_read2(
    handle: *mut c_void,
    offset: u64,
    length: usize,
    bytes: *mut c_char,
    completion: *mut c_void,
    _flags: c_int,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { rbd_aio_read(handle, offset, length, bytes, completion) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_aio_readv(
    handle: *mut c_void,
    parts: *const iovec,
    count: c_int,
    offset: u64,
    completion: *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe {
        leave(handle, completion, |image, completion| {
            read(image, offset, Memory::in_parts(parts, count)?, completion)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_aio_write(
    handle: *mut c_void,
    offset: u64,
    length: usize,
    bytes: *const c_char,
    completion: *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe {
        leave(handle, completion, |image, completion| {
            write(image, offset, Memory::at(bytes.cast_mut().cast(), length)?, false, completion)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_aio_write2(
    handle: *mut c_void,
    offset: u64,
    length: usize,
    bytes: *const c_char,
    completion: *mut c_void,
    _flags: c_int,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { rbd_aio_write(handle, offset, length, bytes, completion) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_aio_writev(
    handle: *mut c_void,
    parts: *const iovec,
    count: c_int,
    offset: u64,
    completion: *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe {
        leave(handle, completion, |image, completion| {
            write(image, offset, Memory::in_parts(parts, count)?, false, completion)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_aio_discard(
    handle: *mut c_void,
    offset: u64,
    length: u64,
    completion: *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { leave(handle, completion, |image, completion| zero(image, (offset, length), false, completion)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_aio_write_zeroes(
    handle: *mut c_void,
    offset: u64,
    length: usize,
    completion: *mut c_void,
    _zero_flags: c_int,
    _flags: c_int,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { rbd_aio_discard(handle, offset, length as u64, completion) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_aio_writesame(
    handle: *mut c_void,
    offset: u64,
    length: usize,
    bytes: *const c_char,
    pattern_bytes: usize,
    completion: *mut c_void,
    _flags: c_int,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe {
        leave(handle, completion, |image, completion| {
            let memory = Memory::at(bytes.cast_mut().cast(), pattern_bytes)?;
            write_same(image, (offset, length as u64), memory, false, completion)
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_aio_flush(handle: *mut c_void, completion: *mut c_void) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { leave(handle, completion, Image::flush) }
}
