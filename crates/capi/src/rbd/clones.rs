//! Images that begin with what a snapshot of another holds.

use super::attributes::{Attributes, attributes_of};
use super::image::image_of;
use super::options::{Wish, wished};
use crate::entry::{Progress, answer_done, tell_done};
use crate::errno::{Answer, Errno};
use crate::image::Image;
use crate::rados::Pool;
use crate::text::{given, tell};
use base::LayerId;
use base::map::ClusterMap;
use cluster::VolumeChange;
use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

unsafe fn clone(
    (parent, name, snapshot): (*mut c_void, *const c_char, *const c_char),
    (pool, new): (*mut c_void, *const c_char),
    wished: impl FnOnce(&Attributes) -> Answer<Attributes>,
) -> Answer<Attributes> {
    // SAFETY: as the caller promises.
    let (parent, name, snapshot) = unsafe { (Pool::of(parent)?, given(name)?, given(snapshot)?) };
    // SAFETY: as above.
    let (pool, new) = unsafe { (Pool::of(pool)?, given(new)?) };
    if !Arc::ptr_eq(parent.cluster(), pool.cluster()) {
        return Err(Errno(libc::EXDEV));
    }
    let (volume, snapshot) = (parent.name_of(name)?, snapshot.to_owned());
    let map = pool.cluster().map_now()?;
    let (id, _) = map.find_volume(&volume).map_err(|_| Errno(libc::ENOENT))?;
    let layer = map.snapshot_named(id, &snapshot).ok_or(Errno(libc::ENOENT))?;
    // Volumes would do without; programs expect of images that they do not.
    if map.snapshot(layer).is_some_and(|info| !info.protected) {
        return Err(Errno(libc::EINVAL));
    }
    let attributes = wished(&attributes_of(pool.cluster(), &volume)?)?;
    let (name, notes) = (pool.new_name(new)?, attributes.notes());
    pool.cluster().change(VolumeChange::Clone { volume, snapshot, name, notes })?;
    Ok(attributes)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_clone3(
    parent: *mut c_void,
    name: *const c_char,
    snapshot: *const c_char,
    pool: *mut c_void,
    new: *const c_char,
    options: *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        clone((parent, name, snapshot), (pool, new), |parent| wished(options, parent)).map(drop)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_clone(
    parent: *mut c_void,
    name: *const c_char,
    snapshot: *const c_char,
    pool: *mut c_void,
    new: *const c_char,
    features: u64,
    order: *mut c_int,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { rbd_clone2(parent, name, snapshot, pool, new, features, order, 0, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_clone2(
    parent: *mut c_void,
    name: *const c_char,
    snapshot: *const c_char,
    pool: *mut c_void,
    new: *const c_char,
    features: u64,
    order: *mut c_int,
    stripe_unit: u64,
    stripe_count: c_int,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let mut order = unsafe { order.as_mut() };
        let stripe_count = u64::try_from(stripe_count).map_err(|_| Errno(libc::EINVAL))?;
        let stripes = (stripe_unit, stripe_count);
        let wish = Wish::of(order.as_deref().copied().unwrap_or(0), Some(features), stripes)?;
        // SAFETY: as above.
        let made = unsafe { clone((parent, name, snapshot), (pool, new), |parent| parent.as_wished(&wish)) }?;
        if let Some(order) = &mut order {
            **order = made.order as c_int;
        }
        Ok(())
    })
}

impl Image {
    /// The snapshot that it was cloned from, if it was, and depends on still.
    pub(super) fn parent(&self) -> Answer<LayerId> {
        let map = self.cluster.map_now()?;
        map.volumes.get(&self.volume).and_then(|info| info.parent).ok_or(Errno(libc::ENOENT))
    }

    /// So much of what it was cloned from it sees still, in bytes: what was cut off once does not come back.
    pub(super) fn overlap(&self) -> Answer<u64> {
        let map = self.cluster.map_now()?;
        let Some(layer) = map.volumes.get(&self.volume).and_then(|info| info.parent) else {
            return Ok(0);
        };
        let held = map.snapshot(layer).map_or(0, |snapshot| snapshot.bytes);
        let noted = self.attributes()?.overlap_max.unwrap_or(u64::MAX);
        Ok(held.min(noted).min(self.bytes()?))
    }

    fn flatten(&self) -> Answer<()> {
        self.check_writable()?;
        self.check_may_wait()?;
        self.parent().map_err(|_| Errno(libc::EINVAL))?;
        self.cluster.change(VolumeChange::Flatten { name: self.name()?, is_wanted: true })?;
        let volume = self.volume;
        let is_flat =
            move |map: &ClusterMap| map.volumes.get(&volume).is_none_or(|info| info.parent.is_none());
        while !self.cluster.wait_for(is_flat) {
            // It is under way for as long as it takes, unless somebody gave it up.
            let info = self.info()?;
            if info.flatten.is_none() && info.parent.is_some() {
                return Err(Errno(libc::ECANCELED));
            }
        }
        Ok(())
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_flatten(image: *mut c_void) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { image_of(image) }?.flatten())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_flatten_with_progress(
    image: *mut c_void,
    progress: Progress,
    told: *mut c_void,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        unsafe { image_of(image) }?.flatten()?;
        tell_done(progress, told);
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_get_overlap(image: *mut c_void, place: *mut u64) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { tell(place, image_of(image)?.overlap()?) })
}
