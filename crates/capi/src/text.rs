//! Texts, as C has them.

use crate::errno::{Answer, Errno};
use std::ffi::{CStr, CString, c_char};

/// A text of the caller's.
///
/// # Errors
/// It is none, or is not UTF-8: no name of Millpond's is so.
///
/// # Safety
/// It ends with a zero, or is null.
pub unsafe fn given<'a>(text: *const c_char) -> Answer<&'a str> {
    // SAFETY: as the caller promises.
    unsafe { given_if_any(text) }?.ok_or(Errno(libc::EINVAL))
}

/// The same, where null says that nothing is said.
///
/// # Errors
/// It is not UTF-8.
///
/// # Safety
/// It ends with a zero, or is null.
pub unsafe fn given_if_any<'a>(text: *const c_char) -> Answer<Option<&'a str>> {
    if text.is_null() {
        return Ok(None);
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map(Some).map_err(|_| Errno(libc::EINVAL))
}

/// Writes a text and its zero to a place of so many bytes.
///
/// # Errors
/// `ERANGE`: it is too small.
///
/// # Safety
/// The place is as large as that.
pub unsafe fn put(text: &str, place: *mut c_char, bytes: usize) -> Answer<usize> {
    if text.len() >= bytes || place.is_null() {
        return Err(Errno(libc::ERANGE));
    }
    // SAFETY: so many bytes and a zero fit, and a text of Rust's does not lie in the caller's place.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), place.cast(), text.len());
        *place.add(text.len()) = 0;
    }
    Ok(text.len())
}

/// Writes texts, each with its zero, one behind the other, to a place whose size the caller tells, and is told how large it has to be.
///
/// # Errors
/// `ERANGE`: it is too small.
///
/// # Safety
/// The place is as large as is told.
pub unsafe fn put_all<'a>(
    texts: impl Iterator<Item = &'a str> + Clone,
    place: *mut c_char,
    bytes: *mut usize,
) -> Answer<usize> {
    let needed: usize = texts.clone().map(|text| text.len() + 1).sum();
    if bytes.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: it is not null, and the caller's.
    let room = unsafe { std::mem::replace(&mut *bytes, needed) };
    if room < needed || place.is_null() && needed > 0 {
        return Err(Errno(libc::ERANGE));
    }
    let mut at = 0;
    for text in texts {
        // SAFETY: all of them fit.
        at += unsafe { put(text, place.add(at), room - at) }? + 1;
    }
    Ok(needed)
}

/// Whether there is a place for what comes of it: it is not begun where there is none.
///
/// # Errors
/// There is none.
pub fn check<T>(place: *mut T) -> Answer<()> {
    if place.is_null() { Err(Errno(libc::EINVAL)) } else { Ok(()) }
}

/// Puts a thing to where the caller wants it.
///
/// # Errors
/// It has none.
///
/// # Safety
/// It may be written to, or is null.
pub unsafe fn tell<T>(place: *mut T, value: T) -> Answer<()> {
    check(place)?;
    // SAFETY: it is not null, and the caller's.
    unsafe { place.write(value) };
    Ok(())
}

/// Puts a list to where the caller has room for so many, and tells it how many there are.
///
/// # Errors
/// `ERANGE`: there is room for fewer.
///
/// # Safety
/// As many fit as is told.
pub unsafe fn put_list<S, T>(
    all: &[S],
    made: impl Fn(&S) -> T,
    places: *mut T,
    room: *mut usize,
) -> Answer<i64> {
    // SAFETY: as the caller promises.
    let room = unsafe { room.as_mut() }.ok_or(Errno(libc::EINVAL))?;
    if std::mem::replace(room, all.len()) < all.len() {
        return Err(Errno(libc::ERANGE));
    }
    if !all.is_empty() {
        check(places)?;
    }
    for (number, one) in all.iter().enumerate() {
        // SAFETY: as many fit.
        unsafe { tell(places.add(number), made(one)) }?;
    }
    Ok(all.len() as i64)
}

/// A text as C gives it away: whoever has it gives it back by [`disowned`].
#[must_use]
pub fn owned(text: &str) -> *mut c_char {
    CString::new(text).unwrap_or_default().into_raw()
}

/// Takes a text back, if it is one, and leaves none behind.
///
/// # Safety
/// It came from [`owned`], or is null.
pub unsafe fn disowned(text: &mut *mut c_char) {
    let text = std::mem::replace(text, std::ptr::null_mut());
    if !text.is_null() {
        // SAFETY: as the caller promises; the place has it no more.
        drop(unsafe { CString::from_raw(text) });
    }
}

/// Writes a text and its zero to a place whose size the caller tells, and is told how large it has to be.
///
/// # Errors
/// `ERANGE`: it is too small.
///
/// # Safety
/// The place is as large as is told.
pub unsafe fn put_counted(text: &str, place: *mut c_char, bytes: *mut usize) -> Answer<()> {
    // SAFETY: as the caller promises.
    unsafe { put_all(std::iter::once(text), place, bytes) }.map(drop)
}
