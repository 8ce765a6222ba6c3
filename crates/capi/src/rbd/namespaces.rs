//! Namespaces of a pool.

use crate::entry::{answer_done, answer_int};
use crate::errno::{Answer, Errno};
use crate::rados::Pool;
use crate::text::{given, put_all, tell};
use cluster::VolumeChange;
use std::ffi::{c_char, c_int, c_void};

/// Those that somebody made, by name.
fn listed(pool: &Pool) -> Answer<Vec<String>> {
    let map = pool.cluster().map_now()?;
    let own = map.namespaces.get(&pool.id());
    Ok(own.into_iter().flatten().map(|(name, _)| name.clone()).collect())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_namespace_create(pool: *mut c_void, name: *const c_char) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (pool, name) = unsafe { (Pool::of(pool)?, given(name)?.to_owned()) };
        pool.cluster().change(VolumeChange::CreateNamespace { pool: pool.place()?.pool, name }).map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_namespace_remove(pool: *mut c_void, name: *const c_char) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (pool, name) = unsafe { (Pool::of(pool)?, given(name)?.to_owned()) };
        pool.cluster().change(VolumeChange::RemoveNamespace { pool: pool.place()?.pool, name }).map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_namespace_exists(
    pool: *mut c_void,
    name: *const c_char,
    place: *mut bool,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        let (pool, name) = (Pool::of(pool)?, given(name)?);
        if name.is_empty() {
            return Err(Errno(libc::EINVAL));
        }
        tell(place, listed(pool)?.iter().any(|known| known == name))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_namespace_list(
    pool: *mut c_void,
    places: *mut c_char,
    bytes: *mut usize,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_int(|| unsafe {
        let all = listed(Pool::of(pool)?)?;
        put_all(all.iter().map(String::as_str), places, bytes).map(|bytes| bytes as i64)
    })
}
