//! Advisory locks: who works on an image, as programs that heed them tell each other.

use super::attributes::now;
use super::image::image_of;
use crate::entry::{answer, answer_done};
use crate::errno::{Answer, Errno};
use crate::image::Image;
use crate::text::{given, given_if_any, put_all, put_counted, tell};
use cluster::{Lock, LockRecord, Locks, Unlock};
use std::ffi::{c_char, c_int, c_void};

/// What tags begin with as they are kept: none is empty there.
const TAG: char = '=';
/// The one lock that images have.
const NAME: &str = "rbd_lock";

/// Who a program is to others.
fn locker_of(image: &Image) -> String {
    format!("client.{}", image.cluster.instance())
}

fn lock(image: &Image, cookie: &str, tag: Option<&str>) -> Answer<()> {
    let since_unix_seconds = now();
    let lock = LockRecord {
        name: NAME.to_owned(),
        locker: locker_of(image),
        cookie: cookie.to_owned(),
        tag: tag.map(|tag| format!("{TAG}{tag}")),
        description: image.cluster.description().to_owned(),
        since_unix_seconds,
        ..LockRecord::default()
    };
    image.cluster.ask(Lock { volume: image.to_change()?, lock })
}

fn unlock(image: &Image, locker: String, cookie: &str) -> Answer<()> {
    let (volume, name, cookie) = (image.to_change()?, NAME.to_owned(), cookie.to_owned());
    image.cluster.ask(Unlock { volume, name, locker, cookie })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_lock_exclusive(image: *mut c_void, cookie: *const c_char) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { lock(image_of(image)?, given_if_any(cookie)?.unwrap_or_default(), None) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_lock_shared(
    image: *mut c_void,
    cookie: *const c_char,
    tag: *const c_char,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        lock(
            image_of(image)?,
            given_if_any(cookie)?.unwrap_or_default(),
            Some(given_if_any(tag)?.unwrap_or_default()),
        )
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_unlock(image: *mut c_void, cookie: *const c_char) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        let image = image_of(image)?;
        unlock(image, locker_of(image), given_if_any(cookie)?.unwrap_or_default())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_break_lock(
    image: *mut c_void,
    locker: *const c_char,
    cookie: *const c_char,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        unlock(image_of(image)?, given(locker)?.to_owned(), given_if_any(cookie)?.unwrap_or_default())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_list_lockers(
    image: *mut c_void,
    exclusive: *mut c_int,
    tag: *mut c_char,
    tag_bytes: *mut usize,
    clients: *mut c_char,
    clients_bytes: *mut usize,
    cookies: *mut c_char,
    cookies_bytes: *mut usize,
    addresses: *mut c_char,
    addresses_bytes: *mut usize,
) -> isize {
    answer(|| {
        // SAFETY: what the program hands over.
        let image = unsafe { image_of(image) }?;
        let mut all = image.cluster.ask(Locks { volume: image.name()? })?;
        all.retain(|lock| lock.name == NAME);
        let shared =
            all.first().and_then(|lock| lock.tag.as_deref()).map(|tag| tag.strip_prefix(TAG).unwrap_or(tag));
        let texts = |of: fn(&LockRecord) -> &str| all.iter().map(of);
        // SAFETY: as above. Each is told how large it has to be, also where another is too small.
        let put = unsafe {
            tell(exclusive, c_int::from(shared.is_none() && !all.is_empty()))?;
            [
                put_counted(shared.unwrap_or_default(), tag, tag_bytes).map(|()| 0),
                put_all(texts(|lock| &lock.locker), clients, clients_bytes),
                put_all(texts(|lock| &lock.cookie), cookies, cookies_bytes),
                put_all(texts(|lock| &lock.description), addresses, addresses_bytes),
            ]
        };
        put.into_iter().collect::<Result<Vec<usize>, Errno>>()?;
        Ok(all.len() as i64)
    }) as isize
}
