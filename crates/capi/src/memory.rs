//! Memory of the program's, which it leaves alone until the operation on it has ended: C's libraries ask that of it.
#![allow(unsafe_code)]

use crate::errno::{Answer, Errno};
use libc::iovec;
use std::ffi::{c_int, c_void};

/// The most parts that one operation has its bytes in (`IOV_MAX` of Linux).
const PARTS_MAX: usize = 1024;

#[derive(Clone, Copy, Debug)]
struct Part {
    bytes: *mut u8,
    length: usize,
}

#[derive(Debug)]
enum Parts {
    One(Part),
    Several(Box<[Part]>),
}

/// See the module's documentation.
#[derive(Debug)]
pub struct Memory {
    parts: Parts,
    length: usize,
}

// SAFETY: the program leaves it to this library until the operation has ended, whichever thread does that.
unsafe impl Send for Memory {}

impl Memory {
    /// What lies there.
    ///
    /// # Errors
    /// There is nothing.
    ///
    /// # Safety
    /// So many bytes may be used there until the operation has ended.
    pub unsafe fn at(bytes: *mut c_void, length: usize) -> Answer<Memory> {
        if bytes.is_null() && length > 0 {
            return Err(Errno(libc::EINVAL));
        }
        Ok(Memory { parts: Parts::One(Part { bytes: bytes.cast(), length }), length })
    }

    /// What lies in several places.
    ///
    /// # Errors
    /// There are none, or too many, or they are longer together than can be.
    ///
    /// # Safety
    /// All of them may be used until the operation has ended, and the list of them now.
    pub unsafe fn in_parts(list: *const iovec, count: c_int) -> Answer<Memory> {
        let count = usize::try_from(count).ok().filter(|count| (1..=PARTS_MAX).contains(count));
        let count = count.filter(|_| !list.is_null()).ok_or(Errno(libc::EINVAL))?;
        // SAFETY: as the caller promises.
        let list = unsafe { std::slice::from_raw_parts(list, count) };
        let mut length = 0usize;
        for part in list {
            if part.iov_base.is_null() && part.iov_len > 0 {
                return Err(Errno(libc::EINVAL));
            }
            length = length.checked_add(part.iov_len).ok_or(Errno(libc::EINVAL))?;
        }
        let part = |part: &iovec| Part { bytes: part.iov_base.cast(), length: part.iov_len };
        Ok(Memory { parts: Parts::Several(list.iter().map(part).collect()), length })
    }

    /// Bytes in it.
    pub fn length(&self) -> usize {
        self.length
    }

    fn parts(&self) -> &[Part] {
        match &self.parts {
            Parts::One(part) => std::slice::from_ref(part),
            Parts::Several(parts) => parts,
        }
    }

    /// Calls for each run of `count` bytes from `at` on, with where it begins among them.
    fn for_each(&self, at: usize, count: usize, mut done: impl FnMut(usize, *mut u8, usize)) {
        assert!(at.checked_add(count).is_some_and(|end| end <= self.length), "it lies within the memory");
        let (mut skipped, mut begun) = (at, 0);
        for part in self.parts() {
            let from = skipped.min(part.length);
            skipped -= from;
            let length = (part.length - from).min(count - begun);
            if length > 0 {
                // SAFETY: it lies within the part.
                done(begun, unsafe { part.bytes.add(from) }, length);
                begun += length;
            }
        }
    }

    /// Copies what is from `at` on to there.
    pub fn copy_to(&self, at: usize, to: &mut [u8]) {
        self.for_each(at, to.len(), |begun, bytes, length| {
            // SAFETY: both are so long, and this library's memory is not the program's.
            unsafe { std::ptr::copy_nonoverlapping(bytes, to[begun..begun + length].as_mut_ptr(), length) };
        });
    }

    /// Copies to what is from `at` on.
    pub fn copy_from(&self, at: usize, from: &[u8]) {
        self.for_each(at, from.len(), |begun, bytes, length| {
            // SAFETY: as in `copy_to`.
            unsafe { std::ptr::copy_nonoverlapping(from[begun..begun + length].as_ptr(), bytes, length) };
        });
    }

    /// Fills `to` with what is from `at` on, again and again.
    pub fn repeat_to(&self, at: usize, to: &mut [u8]) {
        let mut filled = 0;
        while filled < to.len() {
            let from = (at + filled) % self.length;
            let length = (self.length - from).min(to.len() - filled);
            self.copy_to(from, &mut to[filled..filled + length]);
            filled += length;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_one_behind_the_other() {
        let (mut one, mut two) = ([1u8, 2, 3], [4u8, 5]);
        let part = |bytes: &mut [u8]| iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
        let list = [part(&mut one), part(&mut []), part(&mut two)];
        // SAFETY: they are there until the end of the test.
        let memory = unsafe { Memory::in_parts(list.as_ptr(), 3) }.unwrap();
        let mut bytes = [0; 3];
        memory.copy_to(1, &mut bytes);
        assert_eq!((memory.length(), bytes), (5, [2, 3, 4]));
        let mut repeated = [0; 8];
        memory.repeat_to(3, &mut repeated);
        assert_eq!(repeated, [4, 5, 1, 2, 3, 4, 5, 1]);
        memory.copy_from(2, &[8, 9]);
        assert_eq!((one, two), ([1, 2, 8], [9, 5]));
        // SAFETY: they are not looked at.
        unsafe {
            assert!(Memory::in_parts(list.as_ptr(), 0).is_err());
            assert!(Memory::in_parts(std::ptr::null(), 1).is_err());
            assert!(Memory::at(std::ptr::null_mut(), 1).is_err());
        }
    }
}
