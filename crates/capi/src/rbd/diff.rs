//! What an image holds, or holds otherwise than a snapshot of it.

use super::image::image_of;
use crate::entry::answer_int;
use crate::errno::{Answer, Errno};
use crate::image::Image;
use crate::text::given_if_any;
use base::OBJECT_BYTES;
use client::Change;
use std::ffi::{c_char, c_int, c_void};

/// So much is asked for at once, in bytes.
const STEP_BYTES: u64 = 4 << 30;

/// Is told of each part: where it is, how long, and whether something is there. Below 0: no more is wanted.
type Told = extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;

/// A part that is told: where it begins and ends, and whether something is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    start: u64,
    end: u64,
    is_there: bool,
}

/// Parts in order; neighbours that are alike are told as one.
struct Parts<'a> {
    last: Option<Part>,
    tell: &'a mut dyn FnMut(Part) -> Answer<()>,
}

impl Parts<'_> {
    fn add(&mut self, part: Part) -> Answer<()> {
        match &mut self.last {
            Some(last) if last.end >= part.start && last.is_there == part.is_there => {
                last.end = last.end.max(part.end);
                Ok(())
            }
            _ => self.last.replace(part).map_or(Ok(()), &mut *self.tell),
        }
    }

    fn end(mut self) -> Answer<()> {
        self.last.take().map_or(Ok(()), &mut *self.tell)
    }
}

/// A part widened to whole objects, as far as these lie within the range.
fn whole(part: Part, range: (u64, u64)) -> Part {
    let (start, end) = (part.start / OBJECT_BYTES * OBJECT_BYTES, part.end.next_multiple_of(OBJECT_BYTES));
    Part { start: start.max(range.0), end: end.min(range.1), ..part }
}

fn iterate(
    image: &Image,
    since: Option<&str>,
    (offset, length): (u64, u64),
    by_object: bool,
    tell: &mut dyn FnMut(Part) -> Answer<()>,
) -> Answer<()> {
    let since = match since {
        Some(name) => {
            Some(image.cluster.map_now()?.snapshot_named(image.volume, name).ok_or(Errno(libc::ENOENT))?)
        }
        None => None,
    };
    let (mut at, end) = (offset, offset + image.within(offset, length)?);
    let mut parts = Parts { last: None, tell };
    while at < end {
        let step = STEP_BYTES.min(end - at);
        for (bytes, change) in image.changed(at, step, since)? {
            let part = Part { start: at, end: at + bytes, is_there: change == Change::Data };
            at += bytes;
            // Where nothing was asked to be compared with, zeros are nothing.
            if change == Change::Data || change == Change::Zeros && since.is_some() {
                parts.add(if by_object { whole(part, (offset, end)) } else { part })?;
            }
        }
    }
    parts.end()
}

unsafe fn iterate_for(
    image: *mut c_void,
    since: *const c_char,
    range: (u64, u64),
    by_object: bool,
    (told, argument): (Option<Told>, *mut c_void),
) -> c_int {
    answer_int(|| {
        // SAFETY: what the program hands over.
        let (image, since) = unsafe { (image_of(image)?, given_if_any(since)?) };
        let told = told.ok_or(Errno(libc::EINVAL))?;
        let mut tell = |part: Part| match told(
            part.start,
            (part.end - part.start) as usize,
            c_int::from(part.is_there),
            argument,
        ) {
            number if number < 0 => Err(Errno(-number)),
            _ => Ok(()),
        };
        iterate(image, since, range, by_object, &mut tell).map(|()| 0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_diff_iterate(
    image: *mut c_void,
    since: *const c_char,
    offset: u64,
    length: u64,
    told: Option<Told>,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { iterate_for(image, since, (offset, length), false, (told, argument)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_diff_iterate2(
    image: *mut c_void,
    since: *const c_char,
    offset: u64,
    length: u64,
    _include_parent: u8,
    whole_object: u8,
    told: Option<Told>,
    argument: *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { iterate_for(image, since, (offset, length), whole_object != 0, (told, argument)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_that_are_alike_are_one_and_objects_are_told_whole() {
        let part = |start, end, is_there| Part { start, end, is_there };
        let mut told = Vec::new();
        let mut tell = |part| {
            told.push(part);
            Ok(())
        };
        let mut parts = Parts { last: None, tell: &mut tell };
        for one in [part(0, 2, true), part(2, 3, true), part(3, 4, false), part(6, 7, false)] {
            parts.add(one).unwrap();
        }
        parts.end().unwrap();
        assert_eq!(told, [part(0, 3, true), part(3, 4, false), part(6, 7, false)]);
        let object = OBJECT_BYTES;
        assert_eq!(
            whole(part(object + 1, object + 2, true), (0, 9 * object)),
            part(object, 2 * object, true)
        );
        assert_eq!(whole(part(5, 6, true), (3, object - 1)), part(3, object - 1, true));
    }
}
