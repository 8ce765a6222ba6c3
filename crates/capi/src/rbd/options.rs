//! `rbd_image_options_t`: how an image is to be made.

use super::attributes::Attributes;
use crate::entry::{answer_done, answer_int, answer_nothing};
use crate::errno::{Answer, Errno};
use crate::text::{given, put, tell};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};

/// The numbers of options, by `rbd.h`.
mod of {
    use std::ffi::c_int;

    pub const FORMAT: c_int = 0;
    pub const FEATURES: c_int = 1;
    pub const ORDER: c_int = 2;
    pub const STRIPE_UNIT: c_int = 3;
    pub const STRIPE_COUNT: c_int = 4;
    pub const FEATURES_SET: c_int = 8;
    pub const FEATURES_CLEAR: c_int = 9;
    /// Volumes are in one pool.
    pub const DATA_POOL: c_int = 10;
}

/// The only format that images have.
const FORMAT: u64 = 2;

/// How somebody wishes an image to be; None: as it is usual.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wish {
    pub order: Option<u64>,
    /// In bytes.
    pub stripe_unit: Option<u64>,
    pub stripe_count: Option<u64>,
    pub features: Option<u64>,
    pub features_set: u64,
    pub features_clear: u64,
}

/// What stands for nothing where a number is wanted.
fn unless_zero(number: u64) -> Option<u64> {
    Some(number).filter(|number| *number != 0)
}

impl Wish {
    /// By what older functions are given: 0 is no wish, but of features.
    ///
    /// # Errors
    /// `EDOM`: no order is negative.
    pub(super) fn of(order: c_int, features: Option<u64>, stripes: (u64, u64)) -> Answer<Wish> {
        let order = u64::try_from(order).map_err(|_| Errno(libc::EDOM))?;
        Ok(Wish {
            order: unless_zero(order),
            stripe_unit: unless_zero(stripes.0),
            stripe_count: unless_zero(stripes.1),
            features,
            ..Wish::default()
        })
    }
}

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

    /// How an image is to be.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: none is in another pool than its data, or of another format.
    pub(super) fn wish(&self) -> Answer<Wish> {
        let number = |option| match self.0.get(&option) {
            Some(Value::Number(number)) => Some(*number),
            _ => None,
        };
        let has_data_pool = matches!(self.0.get(&of::DATA_POOL), Some(Value::Text(pool)) if !pool.is_empty());
        if has_data_pool || number(of::FORMAT).is_some_and(|format| format != FORMAT) {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        Ok(Wish {
            order: number(of::ORDER).and_then(unless_zero),
            stripe_unit: number(of::STRIPE_UNIT).and_then(unless_zero),
            stripe_count: number(of::STRIPE_COUNT).and_then(unless_zero),
            features: number(of::FEATURES),
            features_set: number(of::FEATURES_SET).unwrap_or(0),
            features_clear: number(of::FEATURES_CLEAR).unwrap_or(0),
        })
    }
}

/// What a program wishes of an image by options, or by none; what it does not wish is as `usual`.
///
/// # Errors
/// No image can be so.
///
/// # Safety
/// They are options, or null.
pub(super) unsafe fn wished(options: *mut c_void, usual: &Attributes) -> Answer<Attributes> {
    let wish = match options.is_null() {
        true => Wish::default(),
        // SAFETY: as the caller promises.
        false => unsafe { Options::of(options) }?.wish()?,
    };
    usual.as_wished(&wish)
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
            Kind::Number => return Err(Errno(libc::EINVAL)),
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
        if kind_of(option)? != Kind::Text {
            return Err(Errno(libc::EINVAL));
        }
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
