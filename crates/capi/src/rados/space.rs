//! How full the cluster is, and a pool.

use super::Pool;
use super::cluster::Handle;
use crate::cluster::Connected;
use crate::entry::answer_done;
use crate::errno::Answer;
use crate::text::tell;
use cluster::{Space, SpaceRecord};
use std::ffi::{c_int, c_void};

const KIB: u64 = 1 << 10;

/// `struct rados_cluster_stat_t`.
#[repr(C)]
pub struct ClusterSpace {
    kb: u64,
    kb_used: u64,
    kb_avail: u64,
    num_objects: u64,
}

/// `struct rados_pool_stat_t`.
#[repr(C)]
#[derive(Default)]
pub struct PoolSpace {
    num_bytes: u64,
    num_kb: u64,
    num_objects: u64,
    num_object_clones: u64,
    num_object_copies: u64,
    num_objects_missing_on_primary: u64,
    num_objects_unfound: u64,
    num_objects_degraded: u64,
    num_rd: u64,
    num_rd_kb: u64,
    num_wr: u64,
    num_wr_kb: u64,
    num_user_bytes: u64,
    compressed_bytes_orig: u64,
    compressed_bytes: u64,
    compressed_bytes_alloc: u64,
}

/// As the cluster's manager noted it. Before it has, the OSDs' sizes are known, and nothing of what they hold.
fn space(cluster: &Connected) -> Answer<SpaceRecord> {
    if let Some(space) = cluster.ask(Space {})? {
        return Ok(space);
    }
    let usable_bytes = cluster.map_now()?.osds.values().map(|osd| osd.bytes).sum();
    Ok(SpaceRecord { usable_bytes, ..SpaceRecord::default() })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rados_cluster_stat(handle: *mut c_void, place: *mut ClusterSpace) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let cluster = unsafe { Handle::of(handle) }?.connected()?;
        let SpaceRecord { usable_bytes, used_bytes, objects } = space(&cluster)?;
        let told = ClusterSpace {
            kb: usable_bytes / KIB,
            kb_used: used_bytes / KIB,
            kb_avail: usable_bytes.saturating_sub(used_bytes) / KIB,
            num_objects: objects.values().sum(),
        };
        // SAFETY: as above.
        unsafe { tell(place, told) }
    })
}

/// `rados_ioctx_pool_stat`.
pub(super) unsafe extern "C" fn pool_stat(pool: *mut c_void, place: *mut PoolSpace) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let pool = unsafe { Pool::of(pool) }?;
        let (space, map) = (space(pool.cluster())?, pool.cluster().map_now()?);
        let copies_of = |id| map.pools.get(&id).map_or(1, |pool| u64::from(pool.size));
        let all: u64 = space.objects.iter().map(|(id, objects)| objects * copies_of(*id)).sum();
        let (num_objects, copies) =
            (space.objects.get(&pool.id()).copied().unwrap_or(0), copies_of(pool.id()));
        let num_object_copies = num_objects * copies;
        // What all pools hold, by their parts of all objects; and one copy of that.
        let held = u128::from(space.used_bytes) * u128::from(num_object_copies) / u128::from(all.max(1));
        let num_bytes = u64::try_from(held).unwrap_or(u64::MAX) / copies.max(1);
        let told = PoolSpace {
            num_bytes,
            num_kb: num_bytes / KIB,
            num_objects,
            num_object_copies,
            num_user_bytes: num_bytes,
            ..PoolSpace::default()
        };
        // SAFETY: as above.
        unsafe { tell(place, told) }
    })
}
