//! How much images of a pool there are.

use crate::entry::{answer_done, answer_nothing};
use crate::errno::Errno;
use crate::rados::Pool;
use crate::text::tell;
use base::map::{ClusterMap, VolumeInfo};
use base::{PoolId, VolumeId};
use std::ffi::{c_int, c_void};

/// What can be asked, by the numbers of `rbd.h`: of images, and from the fifth on of those in the trash, how many there are, their
/// bytes, their bytes or those of their largest snapshot, and their snapshots.
const KINDS: c_int = 8;
const OF_TRASH: c_int = 4;

/// `rbd_pool_stats_t`: what is asked, and where the answer is wanted.
#[derive(Default)]
struct Asked(Vec<(c_int, *mut u64)>);

unsafe fn asked_of<'a>(stats: *mut c_void) -> Result<&'a mut Asked, Errno> {
    // SAFETY: it came from `rbd_pool_stats_create`, and was not destroyed; or is null.
    unsafe { stats.cast::<Asked>().as_mut() }.ok_or(Errno(libc::EINVAL))
}

fn number(map: &ClusterMap, pool: PoolId, namespace: &str, kind: c_int) -> u64 {
    let is_meant = |info: &VolumeInfo| {
        let is_there = !info.removed && info.pool == pool && info.namespace == namespace;
        is_there && info.trashed.is_some() == (kind >= OF_TRASH)
    };
    let own = map.volumes.iter().filter(|(_, info)| is_meant(info));
    let largest = |id: VolumeId, info: &VolumeInfo| {
        let snapshots = map.snapshots_of(id).map(|(_, snapshot)| snapshot.bytes);
        snapshots.chain([info.bytes]).max().unwrap_or(0)
    };
    own.map(|(id, info)| match kind % OF_TRASH {
        0 => 1,
        1 => info.bytes,
        2 => largest(*id, info),
        _ => map.snapshots_of(*id).count() as u64,
    })
    .sum()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_pool_stats_create(place: *mut *mut c_void) {
    answer_nothing(|| {
        // SAFETY: what the program hands over.
        unsafe { tell(place, Box::into_raw(Box::<Asked>::default()).cast()) }
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_pool_stats_destroy(stats: *mut c_void) {
    answer_nothing(|| {
        if !stats.is_null() {
            // SAFETY: it came from `rbd_pool_stats_create`, and the program has done with it.
            drop(unsafe { Box::from_raw(stats.cast::<Asked>()) });
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_pool_stats_option_add_uint64(
    stats: *mut c_void,
    kind: c_int,
    place: *mut u64,
) -> c_int {
    answer_done(|| {
        if !(0..KINDS).contains(&kind) {
            return Err(Errno(libc::ENOENT));
        }
        // SAFETY: what the program hands over.
        let asked = unsafe { asked_of(stats) }?;
        if asked.0.iter().any(|(known, _)| *known == kind) {
            return Err(Errno(libc::EEXIST));
        }
        asked.0.push((kind, place));
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_pool_stats_get(pool: *mut c_void, stats: *mut c_void) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (pool, asked) = unsafe { (Pool::of(pool)?, asked_of(stats)?) };
        let (map, namespace) = (pool.cluster().map_now()?, pool.namespace());
        // SAFETY: the places were handed over for this.
        asked
            .0
            .iter()
            .try_for_each(|(kind, place)| unsafe { tell(*place, number(&map, pool.id(), &namespace, *kind)) })
    })
}
