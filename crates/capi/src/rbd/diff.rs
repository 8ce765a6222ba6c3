//! What an image holds, or holds otherwise than a snapshot of it.

use super::image::image_of;
use crate::entry::answer_int;
use crate::errno::{Answer, Errno};
use crate::image::Image;
use crate::text::given_if_any;
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

/// What is known of the object that is gone through.
struct Object {
    part: Part,
    /// Bytes of it that are zeros now.
    zeros: u64,
    has_data: bool,
}

/// What is told of whole objects: each at most once.
struct Objects {
    range: (u64, u64),
    /// How large each is, in bytes.
    bytes: u64,
    /// What holds nothing is told too, where it may have held something.
    tells_zeros: bool,
    current: Option<Object>,
}

impl Objects {
    /// Takes in what a part is; what is told of the objects before it.
    fn add(&mut self, (start, end): (u64, u64), change: Change, parts: &mut Parts<'_>) -> Answer<()> {
        let mut at = start;
        while at < end {
            let begins = at / self.bytes * self.bytes;
            let until = end.min(begins + self.bytes);
            let start = begins.max(self.range.0);
            if self.current.as_ref().is_none_or(|object| object.part.start != start) {
                self.tell(parts)?;
                let part = Part { start, end: (begins + self.bytes).min(self.range.1), is_there: true };
                self.current = Some(Object { part, zeros: 0, has_data: false });
            }
            if let Some(object) = &mut self.current {
                object.zeros += if change == Change::Zeros { until - at } else { 0 };
                object.has_data |= change == Change::Data;
            }
            at = until;
        }
        Ok(())
    }

    /// Tells of the last one.
    fn tell(&mut self, parts: &mut Parts<'_>) -> Answer<()> {
        let Some(Object { part, zeros, has_data }) = self.current.take() else { return Ok(()) };
        if !has_data && (zeros == 0 || !self.tells_zeros) {
            return Ok(());
        }
        // Where something of it may be left it is no hole.
        parts.add(Part { is_there: zeros < part.end - part.start, ..part })
    }
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
            let map = image.cluster.map_now()?;
            Some(map.snapshot_named(image.volume, name).ok_or(Errno(libc::ENOENT))?)
        }
        None => None,
    };
    let (mut at, end) = (offset, offset + image.within(offset, length)?);
    let bytes = if by_object { 1 << image.attributes()?.order } else { 1 };
    let mut objects = Objects { range: (offset, end), bytes, tells_zeros: since.is_some(), current: None };
    let mut parts = Parts { last: None, tell };
    while at < end {
        let step = STEP_BYTES.min(end - at);
        for (bytes, change) in image.changed(at, step, since)? {
            let part = Part { start: at, end: at + bytes, is_there: change == Change::Data };
            at += bytes;
            if by_object {
                objects.add((part.start, part.end), change, &mut parts)?;
            } else if change == Change::Data || change == Change::Zeros && since.is_some() {
                // Where nothing was asked to be compared with, zeros are nothing.
                parts.add(part)?;
            }
        }
    }
    objects.tell(&mut parts)?;
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
    fn neighbours_that_are_alike_are_one() {
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
    }

    #[test]
    fn an_object_is_told_once_and_is_a_hole_only_where_all_of_it_is() {
        use Change::{Data, Same, Zeros};
        const BYTES: u64 = 1 << 22;
        const HALF: u64 = BYTES / 2;
        let told_of = |changes: &[(u64, Change)], tells_zeros| {
            let (mut told, mut at) = (Vec::new(), 0);
            let mut tell = |part: Part| {
                told.push((part.start / HALF, part.end / HALF, part.is_there));
                Ok(())
            };
            let mut parts = Parts { last: None, tell: &mut tell };
            let mut objects = Objects { range: (0, 5 * HALF), bytes: BYTES, tells_zeros, current: None };
            for (halves, change) in changes {
                objects.add((at * HALF, (at + halves) * HALF), *change, &mut parts).unwrap();
                at += halves;
            }
            objects.tell(&mut parts).unwrap();
            parts.end().unwrap();
            told
        };
        assert_eq!(told_of(&[(1, Data), (1, Zeros), (3, Same)], true), [(0, 2, true)]);
        assert_eq!(told_of(&[(1, Same), (1, Zeros), (3, Same)], true), [(0, 2, true)]);
        assert_eq!(told_of(&[(2, Same), (3, Zeros)], true), [(2, 5, false)]);
        assert_eq!(told_of(&[(2, Same), (3, Zeros)], false), []);
        assert_eq!(told_of(&[(3, Data), (2, Zeros)], true), [(0, 4, true), (4, 5, false)]);
    }
}
