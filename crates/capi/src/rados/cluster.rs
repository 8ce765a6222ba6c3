//! `rados_t`: a cluster, connected to or not yet.

use crate::cluster::Connected;
use crate::configuration::Configuration;
use crate::entry::{answer, answer_done, answer_int, answer_nothing, watch_forks};
use crate::errno::{Answer, Errno};
use crate::text::{check, given, given_if_any, put, put_all, tell};
use base::map::{Admission, PlacementRule};
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The version of the interface that this follows: that of Ceph 16.
const VERSION: (c_int, c_int, c_int) = (3, 0, 0);
/// Who connects if nobody says so.
const USER: &str = "client.admin";
/// What a cluster is called if nobody says so.
const NAME: &str = "ceph";

/// What a cluster is that is not known yet.
const NO_CLUSTER: &str = "00000000-0000-0000-0000-000000000000";

/// Copies that pools have, where there are so many OSDs.
const COPIES: u32 = 3;

/// What a program knows a cluster by.
pub struct Handle {
    said: Mutex<Configuration>,
    connected: Mutex<Option<Arc<Connected>>>,
}

impl Handle {
    fn new(cluster: &str, user: &str) -> Handle {
        let said = Mutex::new(Configuration::new(cluster, user));
        Handle { said, connected: Mutex::default() }
    }

    /// The one that a program knows by that.
    ///
    /// # Errors
    /// `EINVAL`: it is null.
    ///
    /// # Safety
    /// It came from `rados_create`, and was not shut down.
    pub unsafe fn of<'a>(handle: *mut c_void) -> Answer<&'a Handle> {
        // SAFETY: as the caller promises.
        unsafe { handle.cast::<Handle>().as_ref() }.ok_or(Errno(libc::EINVAL))
    }

    fn said(&self) -> MutexGuard<'_, Configuration> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cluster.
    ///
    /// # Errors
    /// `ENOTCONN`.
    pub fn connected(&self) -> Answer<Arc<Connected>> {
        let connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        connected.clone().ok_or(Errno(libc::ENOTCONN))
    }

    fn connect(&self) -> Answer<()> {
        let mut connected = self.connected.lock().unwrap_or_else(PoisonError::into_inner);
        if connected.is_some() {
            return Err(Errno(libc::EISCONN));
        }
        let said = self.said().clone();
        *connected = Some(Connected::connect(&said)?);
        Ok(())
    }
}

unsafe fn create(place: *mut *mut c_void, cluster: &str, user: &str) -> Answer<()> {
    watch_forks();
    check(place)?;
    let handle = Box::into_raw(Box::new(Handle::new(cluster, user)));
    // SAFETY: as the caller promises.
    unsafe { tell(place, handle.cast()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_version(major: *mut c_int, minor: *mut c_int, extra: *mut c_int) {
    for (place, number) in [(major, VERSION.0), (minor, VERSION.1), (extra, VERSION.2)] {
        // SAFETY: the program's, or null. Who asks for one alone gets that.
        answer_nothing(|| unsafe { tell(place, number) });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_create(place: *mut *mut c_void, id: *const c_char) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let user = unsafe { given_if_any(id) }?.map_or_else(|| USER.to_owned(), |id| format!("client.{id}"));
        // SAFETY: as above.
        unsafe { create(place, NAME, &user) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_create2(
    place: *mut *mut c_void,
    cluster: *const c_char,
    user: *const c_char,
    _flags: u64,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (cluster, user) = unsafe { (given_if_any(cluster)?, given_if_any(user)?) };
        // SAFETY: as above.
        unsafe {
            create(place, cluster.filter(|name| !name.is_empty()).unwrap_or(NAME), user.unwrap_or(USER))
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_shutdown(handle: *mut c_void) {
    answer_nothing(|| {
        if !handle.is_null() {
            // SAFETY: it came from `create`, and the program has done with it. What has its cluster still has its own share.
            drop(unsafe { Box::from_raw(handle.cast::<Handle>()) });
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_connect(handle: *mut c_void) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { Handle::of(handle) }?.connect())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_conf_read_file(handle: *mut c_void, path: *const c_char) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (handle, path) = unsafe { (Handle::of(handle)?, given_if_any(path)?) };
        handle.said().read_file(path)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_conf_set(
    handle: *mut c_void,
    name: *const c_char,
    value: *const c_char,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (handle, name, value) = unsafe { (Handle::of(handle)?, given(name)?, given(value)?) };
        handle.said().set(name, value)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_conf_get(
    handle: *mut c_void,
    name: *const c_char,
    place: *mut c_char,
    bytes: usize,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (handle, name) = unsafe { (Handle::of(handle)?, given(name)?) };
        let said = handle.said();
        // SAFETY: as above.
        unsafe { put(said.get(name)?, place, bytes) }.map(drop).map_err(|_| Errno(libc::ENAMETOOLONG))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_conf_parse_env(handle: *mut c_void, variable: *const c_char) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (handle, variable) = unsafe { (Handle::of(handle)?, given_if_any(variable)?) };
        let said = std::env::var(variable.unwrap_or("CEPH_ARGS")).unwrap_or_default();
        let arguments: Vec<&str> = said.split_whitespace().collect();
        handle.said().take_arguments(&arguments).map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_conf_parse_argv(
    handle: *mut c_void,
    count: c_int,
    list: *const *const c_char,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { take_arguments(handle, count, list) }.map(drop))
}

/// Answers which arguments mean nothing to this library, by their place.
unsafe fn take_arguments(
    handle: *mut c_void,
    count: c_int,
    list: *const *const c_char,
) -> Answer<Vec<*const c_char>> {
    let count = usize::try_from(count).map_err(|_| Errno(libc::EINVAL))?;
    if count == 0 {
        return Ok(Vec::new());
    }
    if list.is_null() {
        return Err(Errno(libc::EINVAL));
    }
    // SAFETY: what the program hands over.
    let (handle, places) = unsafe { (Handle::of(handle)?, std::slice::from_raw_parts(list, count)) };
    // The first is the program's name.
    let places = places.get(1..).unwrap_or_default();
    // SAFETY: as above.
    let arguments = places.iter().map(|place| unsafe { given(*place) }).collect::<Answer<Vec<&str>>>()?;
    let left = handle.said().take_arguments(&arguments)?;
    Ok(left.into_iter().map(|text| text.as_ptr().cast()).collect())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_conf_parse_argv_remainder(
    handle: *mut c_void,
    count: c_int,
    list: *const *const c_char,
    left: *mut *const c_char,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over: as many places are there as in the list.
        let others = unsafe { take_arguments(handle, count, list) }?;
        if count == 0 {
            return Ok(());
        }
        if left.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: as above.
        unsafe {
            left.write(*list);
            for at in 1..count as usize {
                left.add(at).write(others.get(at - 1).copied().unwrap_or(std::ptr::null()));
            }
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_cluster_fsid(handle: *mut c_void, place: *mut c_char, bytes: usize) -> c_int {
    answer_int(|| {
        // SAFETY: what the program hands over.
        let handle = unsafe { Handle::of(handle) }?;
        // Before it is connected it knows none, and says so as Ceph does.
        let id =
            handle.connected().map_or(NO_CLUSTER.to_owned(), |cluster| cluster.map().cluster.to_string());
        // SAFETY: as above.
        unsafe { put(&id, place, bytes) }.map(|length| length as i64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_get_instance_id(handle: *mut c_void) -> u64 {
    // SAFETY: what the program hands over.
    answer(|| Ok(unsafe { Handle::of(handle) }?.connected()?.instance().cast_signed())).max(0).cast_unsigned()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_pool_list(handle: *mut c_void, place: *mut c_char, bytes: usize) -> c_int {
    answer_int(|| {
        // SAFETY: what the program hands over.
        let map = unsafe { Handle::of(handle) }?.connected()?.map_now()?;
        let names = map.pools.values().map(|pool| pool.name.as_str());
        // An empty name ends them.
        let (mut room, needed) = (bytes, names.clone().map(|name| name.len() + 1).sum::<usize>() + 1);
        if bytes >= needed {
            // SAFETY: as above.
            unsafe { put_all(names.chain(std::iter::once("")), place, &raw mut room) }?;
        }
        Ok(needed as i64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_pool_create(handle: *mut c_void, name: *const c_char) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (cluster, name) = unsafe { (Handle::of(handle)?.connected()?, given(name)?.to_owned()) };
        let map = cluster.map_now()?;
        let osds = map.osds.values().filter(|osd| osd.admission != Admission::Out).count();
        let copies = u32::try_from(osds).map_or(COPIES, |osds| osds.clamp(1, COPIES));
        // It survives the loss of half of them.
        let least = copies - copies / 2;
        let groups = placement::default_pg_count(&map, &PlacementRule::default(), copies);
        cluster.as_owner(move |owner| async move {
            owner.create_pool(&name, copies, least, groups).await.map(drop)
        })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_pool_delete(handle: *mut c_void, name: *const c_char) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (cluster, name) = unsafe { (Handle::of(handle)?.connected()?, given(name)?.to_owned()) };
        cluster.as_owner(move |owner| async move { owner.remove_pool(&name).await.map(drop) })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_pool_lookup(handle: *mut c_void, name: *const c_char) -> i64 {
    answer(|| {
        // SAFETY: what the program hands over.
        let (cluster, name) = unsafe { (Handle::of(handle)?.connected()?, given(name)?) };
        let map = cluster.map_now()?;
        let found = map.pools.iter().find(|(_, pool)| pool.name == name);
        found.map(|(id, _)| i64::from(id.0)).ok_or(Errno(libc::ENOENT))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_pool_reverse_lookup(
    handle: *mut c_void,
    id: i64,
    place: *mut c_char,
    bytes: usize,
) -> c_int {
    answer_int(|| {
        // SAFETY: what the program hands over.
        let map = unsafe { Handle::of(handle) }?.connected()?.map_now()?;
        let pool = map.pools.iter().find(|(pool, _)| i64::from(pool.0) == id).ok_or(Errno(libc::ENOENT))?;
        // SAFETY: as above.
        unsafe { put(&pool.1.name, place, bytes) }.map(|length| length as i64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_wait_for_latest_osdmap(handle: *mut c_void) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { Handle::of(handle) }?.connected()?.map_now().map(drop))
}
