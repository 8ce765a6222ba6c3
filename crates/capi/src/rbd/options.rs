//! `rbd_image_options_t`: how an image is to be made.

use super::facts::ORDER;
use crate::entry::{answer_done, answer_int, answer_nothing};
use crate::errno::{Answer, Errno};
use crate::text::{given, put, tell};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};

/// Orders that images of Ceph may have.
const ORDERS: std::ops::RangeInclusive<u64> = 12..=25;
/// The number of the option that is an order.
const OF_ORDER: c_int = 2;
/// That of the pool for data: volumes are in one pool.
const OF_DATA_POOL: c_int = 10;

/// What an option may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Number,
    Text,
}

/// Of each number of `rbd.h`, from 0.
const KINDS: [Kind; 14] = {
    use Kind::{Number, Text};
    [
        Number, Number, Number, Number, Number, Number, Number, Text, Number, Number, Text, Number, Number,
        Number,
    ]
};

fn kind_of(option: c_int) -> Answer<Kind> {
    let kind = usize::try_from(option).ok().and_then(|option| KINDS.get(option));
    kind.copied().ok_or(Errno(libc::EINVAL))
}

#[derive(Clone, Debug)]
enum Value {
    Number(u64),
    Text(String),
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Options(BTreeMap<c_int, Value>);

impl Options {
    /// # Safety
    /// They came from `rbd_image_options_create`, and were not destroyed; or null: none are.
    pub(super) unsafe fn of<'a>(options: *mut c_void) -> Answer<&'a mut Options> {
        // SAFETY: as the caller promises.
        unsafe { options.cast::<Options>().as_mut() }.ok_or(Errno(libc::EINVAL))
    }

    /// Whether an image can be made so.
    pub(super) fn check(&self) -> Answer<()> {
        match (self.0.get(&OF_ORDER), self.0.get(&OF_DATA_POOL)) {
            (Some(Value::Number(order)), _) if *order != 0 && !ORDERS.contains(order) => {
                Err(Errno(libc::EDOM))
            }
            (_, Some(Value::Text(pool))) if !pool.is_empty() => Err(Errno(libc::EOPNOTSUPP)),
            _ => Ok(()),
        }
    }
}

/// Looks at an order that a program wishes, if it does, and tells it the one that images have.
///
/// # Errors
/// `EDOM`: images of Ceph have none such.
///
/// # Safety
/// The place may be read and written, or is null.
pub(super) unsafe fn settle_order(place: *mut c_int) -> Answer<()> {
    // SAFETY: as the caller promises.
    let Some(order) = (unsafe { place.as_mut() }) else { return Ok(()) };
    if *order != 0 && !u64::try_from(*order).is_ok_and(|order| ORDERS.contains(&order)) {
        return Err(Errno(libc::EDOM));
    }
    *order = ORDER;
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_image_options_create(place: *mut *mut c_void) {
    answer_nothing(|| {
        let options = Box::into_raw(Box::<Options>::default());
        // SAFETY: what the program hands over.
        unsafe { tell(place, options.cast()) }
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_image_options_destroy(options: *mut c_void) {
    answer_nothing(|| {
        if !options.is_null() {
            // SAFETY: they came from `rbd_image_options_create`, and the program has done with them.
            drop(unsafe { Box::from_raw(options.cast::<Options>()) });
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_image_options_set_string(
    options: *mut c_void,
    option: c_int,
    text: *const c_char,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (options, text) = unsafe { (Options::of(options)?, given(text)?) };
        let value = match kind_of(option)? {
            Kind::Text => Value::Text(text.to_owned()),
            Kind::Number => Value::Number(text.trim().parse().map_err(|_| Errno(libc::EINVAL))?),
        };
        options.0.insert(option, value);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_image_options_set_uint64(
    options: *mut c_void,
    option: c_int,
    number: u64,
) -> c_int {
    answer_done(|| {
        if kind_of(option)? != Kind::Number {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: what the program hands over.
        unsafe { Options::of(options) }?.0.insert(option, Value::Number(number));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_image_options_get_string(
    options: *mut c_void,
    option: c_int,
    place: *mut c_char,
    bytes: usize,
) -> c_int {
    answer_done(|| {
        kind_of(option)?;
        // SAFETY: what the program hands over.
        let text = match unsafe { Options::of(options) }?.0.get(&option).ok_or(Errno(libc::ENOENT))? {
            Value::Text(text) => text.clone(),
            Value::Number(number) => number.to_string(),
        };
        // SAFETY: as above.
        unsafe { put(&text, place, bytes) }.map(drop).map_err(|_| Errno(libc::E2BIG))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_image_options_get_uint64(
    options: *mut c_void,
    option: c_int,
    place: *mut u64,
) -> c_int {
    answer_done(|| {
        if kind_of(option)? != Kind::Number {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: what the program hands over.
        match unsafe { Options::of(options) }?.0.get(&option) {
            // SAFETY: as above.
            Some(Value::Number(number)) => unsafe { tell(place, *number) },
            _ => Err(Errno(libc::ENOENT)),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_image_options_is_set(
    options: *mut c_void,
    option: c_int,
    place: *mut bool,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        kind_of(option)?;
        tell(place, Options::of(options)?.0.contains_key(&option))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_image_options_unset(options: *mut c_void, option: c_int) -> c_int {
    answer_done(|| {
        kind_of(option)?;
        // SAFETY: what the program hands over.
        let was_set = unsafe { Options::of(options) }?.0.remove(&option);
        was_set.map(drop).ok_or(Errno(libc::ENOENT))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_image_options_clear(options: *mut c_void) {
    // SAFETY: what the program hands over.
    answer_nothing(|| {
        unsafe { Options::of(options) }?.0.clear();
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_image_options_is_empty(options: *mut c_void) -> c_int {
    // SAFETY: what the program hands over.
    answer_int(|| Ok(i64::from(unsafe { Options::of(options) }?.0.is_empty())))
}
