//! `rados_ioctx_t`: a pool, and the namespace in it that is meant.

use super::cluster::Handle;
use crate::cluster::Connected;
use crate::entry::{answer, answer_done, answer_int, answer_nothing};
use crate::errno::{Answer, Errno};
use crate::image::id_of_text;
use crate::text::{given, given_if_any, put, tell};
use base::PoolId;
use base::names::PlaceName;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, PoisonError};

/// What a program knows a pool by.
pub struct Pool {
    cluster: Arc<Connected>,
    id: PoolId,
    namespace: Mutex<String>,
}

impl Pool {
    /// The one that a program knows by that.
    ///
    /// # Errors
    /// `EINVAL`: it is null.
    ///
    /// # Safety
    /// It came from `rados_ioctx_create`, and was not destroyed.
    pub unsafe fn of<'a>(handle: *mut c_void) -> Answer<&'a Pool> {
        // SAFETY: as the caller promises.
        unsafe { handle.cast::<Pool>().as_ref() }.ok_or(Errno(libc::EINVAL))
    }

    /// Its cluster.
    pub fn cluster(&self) -> &Arc<Connected> {
        &self.cluster
    }

    /// Its id.
    pub fn id(&self) -> PoolId {
        self.id
    }

    /// The namespace that is meant; empty: the default one.
    pub fn namespace(&self) -> String {
        self.namespace.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its name and that of the namespace.
    ///
    /// # Errors
    /// `ENOENT`: it was removed.
    pub fn place(&self) -> Answer<PlaceName> {
        let map = self.cluster.map();
        let pool = map.pools.get(&self.id).ok_or(Errno(libc::ENOENT))?.name.clone();
        Ok(PlaceName { pool, namespace: self.namespace() })
    }

    /// The full name that a volume there is to have.
    ///
    /// # Errors
    /// `ENOENT`: the pool was removed. `EINVAL`: none can be called so.
    pub fn new_name(&self, volume: &str) -> Answer<String> {
        base::names::check(volume).map_err(|_| Errno(libc::EINVAL))?;
        self.name_of(volume)
    }

    /// The full name of a volume there.
    ///
    /// # Errors
    /// `ENOENT`: the pool was removed, or none can be called so.
    pub fn name_of(&self, volume: &str) -> Answer<String> {
        base::names::check(volume).map_err(|_| Errno(libc::ENOENT))?;
        Ok(format!("{}/{volume}", self.place()?))
    }

    /// The same, of one that is there: who opens one that is not is not to wait for it.
    ///
    /// # Errors
    /// `ENOENT`: there is none.
    pub fn name_of_known(&self, volume: &str) -> Answer<String> {
        let name = self.name_of(volume)?;
        let found = self.cluster.map_now()?.find_volume(&name).is_ok();
        if found { Ok(name) } else { Err(Errno(libc::ENOENT)) }
    }

    /// The volume there that has an id, by its full name.
    ///
    /// # Errors
    /// `ENOENT`: there is none.
    pub fn name_of_id(&self, id: &str) -> Answer<String> {
        let id = id_of_text(id)?;
        let (map, namespace) = (self.cluster.map_now()?, self.namespace());
        let info = map.volumes.get(&id).filter(|info| info.is_listed());
        let info = info.filter(|info| info.pool == self.id && info.namespace == namespace);
        self.name_of(&info.ok_or(Errno(libc::ENOENT))?.name)
    }
}

/// Opens one that is there.
fn open(cluster: Arc<Connected>, id: Option<PoolId>, place: *mut *mut c_void) -> Answer<()> {
    let id = id.ok_or(Errno(libc::ENOENT))?;
    // Names of volumes are put together by what the followed map shows.
    cluster.wait_for(move |map| map.pools.contains_key(&id));
    let pool = Box::into_raw(Box::new(Pool { cluster, id, namespace: Mutex::default() }));
    // SAFETY: the program's, or null.
    unsafe { tell(place, pool.cast()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_ioctx_create(
    handle: *mut c_void,
    name: *const c_char,
    place: *mut *mut c_void,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (cluster, name) = unsafe { (Handle::of(handle)?.connected()?, given(name)?) };
        let map = cluster.map_now()?;
        let id = map.pools.iter().find(|(_, pool)| pool.name == name).map(|(id, _)| *id);
        open(cluster, id, place)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_ioctx_create2(handle: *mut c_void, id: i64, place: *mut *mut c_void) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let cluster = unsafe { Handle::of(handle) }?.connected()?;
        let map = cluster.map_now()?;
        let id = map.pools.keys().find(|pool| i64::from(pool.0) == id).copied();
        open(cluster, id, place)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_ioctx_destroy(handle: *mut c_void) {
    answer_nothing(|| {
        if !handle.is_null() {
            // SAFETY: it came from `open`, and the program has done with it.
            drop(unsafe { Box::from_raw(handle.cast::<Pool>()) });
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_ioctx_set_namespace(handle: *mut c_void, name: *const c_char) {
    answer_nothing(|| {
        // SAFETY: what the program hands over.
        let (pool, name) = unsafe { (Pool::of(handle)?, given_if_any(name)?) };
        *pool.namespace.lock().unwrap_or_else(PoisonError::into_inner) = name.unwrap_or_default().to_owned();
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_ioctx_get_namespace(
    handle: *mut c_void,
    place: *mut c_char,
    bytes: std::ffi::c_uint,
) -> c_int {
    answer_int(|| {
        // SAFETY: what the program hands over.
        let pool = unsafe { Pool::of(handle) }?;
        // SAFETY: as above.
        unsafe { put(&pool.namespace(), place, bytes as usize) }.map(|length| length as i64)
    })
}

/// Whether what is written must begin at multiples of something: never.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_ioctx_pool_requires_alignment(handle: *mut c_void) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { Pool::of(handle) }.map(drop))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_ioctx_pool_requires_alignment2(
    handle: *mut c_void,
    place: *mut c_int,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        Pool::of(handle)?;
        tell(place, 0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_ioctx_pool_required_alignment(_handle: *mut c_void) -> u64 {
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_ioctx_pool_required_alignment2(handle: *mut c_void, place: *mut u64) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        Pool::of(handle)?;
        tell(place, 0)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_ioctx_get_id(handle: *mut c_void) -> i64 {
    // SAFETY: what the program hands over.
    answer(|| Ok(i64::from(unsafe { Pool::of(handle) }?.id.0)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_ioctx_get_pool_name(
    handle: *mut c_void,
    place: *mut c_char,
    bytes: std::ffi::c_uint,
) -> c_int {
    answer_int(|| {
        // SAFETY: what the program hands over.
        let pool = unsafe { Pool::of(handle) }?;
        // SAFETY: as above.
        unsafe { put(&pool.place()?.pool, place, bytes as usize) }.map(|length| length as i64)
    })
}
