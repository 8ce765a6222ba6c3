//! Images of a pool: made, removed, renamed, resized and listed.

use super::attributes::Attributes;
use super::image::image_of;
use super::options::{Wish, wished};
use crate::entry::{Progress, answer_done, answer_int, answer_nothing, tell, tell_done};
use crate::errno::{Answer, Errno};
use crate::image::{Image, id_text};
use crate::rados::Pool;
use crate::text::{disowned, given, owned, put_all, put_list};
use cluster::VolumeChange;
use std::ffi::{c_char, c_int, c_void};
use std::time::{Duration, Instant};

/// How long it may take until what an image held beyond an earlier end is deleted.
const DELETED_LIMIT: Duration = Duration::from_secs(30);
/// The pause before that is asked again.
const PAUSE: Duration = Duration::from_millis(100);

/// `rbd_image_spec_t`.
#[repr(C)]
pub struct Spec {
    id: *mut c_char,
    name: *mut c_char,
}

/// A pool is ready for images as it is.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_pool_init(handle: *mut c_void, _by_force: bool) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { Pool::of(handle) }?.place().map(drop))
}

/// Makes one.
pub(super) fn create(pool: &Pool, name: &str, bytes: u64, attributes: &Attributes) -> Answer<()> {
    let (name, place) = (pool.new_name(name)?, pool.place()?.pool);
    let change = VolumeChange::Create { name, pool: place, bytes, notes: attributes.notes() };
    pool.cluster().change(change).map(drop)
}

/// The same, by what older functions are given. They are told the order that it has.
unsafe fn create_by(
    pool: *mut c_void,
    (name, bytes): (*const c_char, u64),
    order: *mut c_int,
    features: Option<u64>,
    stripes: (u64, u64),
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let mut order = unsafe { order.as_mut() };
        let wish = Wish::of(order.as_deref().copied().unwrap_or(0), features, stripes)?;
        let attributes = Attributes::default().as_wished(&wish)?;
        // SAFETY: as above.
        create(unsafe { Pool::of(pool) }?, unsafe { given(name) }?, bytes, &attributes)?;
        if let Some(order) = &mut order {
            **order = attributes.order as c_int;
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_create4(
    pool: *mut c_void,
    name: *const c_char,
    bytes: u64,
    options: *mut c_void,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        unsafe { create(Pool::of(pool)?, given(name)?, bytes, &wished(options, &Attributes::default())?) }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_create(
    pool: *mut c_void,
    name: *const c_char,
    bytes: u64,
    order: *mut c_int,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { create_by(pool, (name, bytes), order, None, (0, 0)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_create2(
    pool: *mut c_void,
    name: *const c_char,
    bytes: u64,
    features: u64,
    order: *mut c_int,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { create_by(pool, (name, bytes), order, Some(features), (0, 0)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_create3(
    pool: *mut c_void,
    name: *const c_char,
    bytes: u64,
    features: u64,
    order: *mut c_int,
    stripe_unit: u64,
    stripe_count: u64,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { create_by(pool, (name, bytes), order, Some(features), (stripe_unit, stripe_count)) }
}

fn remove(pool: &Pool, name: &str, progress: Progress, told: *mut c_void) -> Answer<()> {
    let (name, map) = (pool.name_of(name)?, pool.cluster().map_now()?);
    // A volume's snapshots go with it; an image has none left when it is removed.
    if map.find_volume(&name).is_ok_and(|(id, _)| map.snapshots_of(id).next().is_some()) {
        return Err(Errno(libc::ENOTEMPTY));
    }
    // Whoever is told may want no more of it, and has it still.
    tell(progress, (0, 1), told)?;
    pool.cluster().change(VolumeChange::Remove { name })?;
    // What it held is deleted later, by whom holds it.
    tell_done(progress, told);
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_remove(pool: *mut c_void, name: *const c_char) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { remove(Pool::of(pool)?, given(name)?, None, std::ptr::null_mut()) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_remove_with_progress(
    pool: *mut c_void,
    name: *const c_char,
    progress: Progress,
    told: *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { remove(Pool::of(pool)?, given(name)?, progress, told) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_rename(pool: *mut c_void, name: *const c_char, new: *const c_char) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (pool, name, new) = unsafe { (Pool::of(pool)?, given(name)?, given(new)?) };
        base::names::check(new).map_err(|_| Errno(libc::EINVAL))?;
        if new == name {
            return Err(Errno(libc::EEXIST));
        }
        let change = VolumeChange::Rename { name: pool.name_of(name)?, new: new.to_owned() };
        pool.cluster().change(change).map(drop)
    })
}

impl Image {
    /// Gives it another size.
    pub(super) fn resize(&self, bytes: u64, allow_shrink: bool) -> Answer<()> {
        self.check_writable()?;
        self.check_may_wait()?;
        let name = self.name()?;
        let cuts_overlap = allow_shrink && bytes < self.overlap()?;
        // What lay beyond an earlier end is deleted first, which takes a moment.
        let until = Instant::now() + DELETED_LIMIT;
        loop {
            let change = VolumeChange::Resize { name: name.clone(), bytes, allow_shrink };
            match self.cluster.change(change) {
                Err(Errno(libc::EBUSY)) if Instant::now() < until => std::thread::sleep(PAUSE),
                Err(error) => return Err(error),
                Ok(_) => break,
            }
        }
        if cuts_overlap {
            self.note("overlap_max", Some(bytes))?;
        }
        let volume = self.volume;
        self.cluster.wait_for(move |map| map.volumes.get(&volume).is_none_or(|info| info.bytes == bytes));
        self.catch_up()
    }
}

unsafe fn resize(
    image: *mut c_void,
    bytes: u64,
    allow_shrink: bool,
    progress: Progress,
    told: *mut c_void,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let image = unsafe { image_of(image) }?;
        let (before, order) = (image.bytes_now()?, image.attributes()?.order);
        image.resize(bytes, allow_shrink)?;
        // It is by objects that there is something to do, and only where there are fewer from now on.
        let objects = before.div_ceil(1 << order);
        if bytes < before {
            let _ = tell(progress, (objects, objects), told);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_resize(image: *mut c_void, bytes: u64) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { resize(image, bytes, true, None, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_resize2(
    image: *mut c_void,
    bytes: u64,
    allow_shrink: bool,
    progress: Progress,
    told: *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { resize(image, bytes, allow_shrink, progress, told) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_resize_with_progress(
    image: *mut c_void,
    bytes: u64,
    progress: Progress,
    told: *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { resize(image, bytes, true, progress, told) }
}

/// The images that are there: their ids and names, by name.
fn listed(pool: &Pool) -> Answer<Vec<(String, String)>> {
    let (map, namespace) = (pool.cluster().map_now()?, pool.namespace());
    let own = map.volumes.iter().filter(|(_, info)| info.is_listed() && info.pool == pool.id());
    let own = own.filter(|(_, info)| info.namespace == namespace);
    let mut own: Vec<_> = own.map(|(id, info)| (id_text(*id), info.name.clone())).collect();
    own.sort_by(|one, other| one.1.cmp(&other.1));
    Ok(own)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_list(pool: *mut c_void, places: *mut c_char, bytes: *mut usize) -> c_int {
    answer_int(|| {
        // SAFETY: what the program hands over.
        let all = listed(unsafe { Pool::of(pool) }?)?;
        // SAFETY: as above.
        unsafe { put_all(all.iter().map(|(_, name)| name.as_str()), places, bytes) }.map(|bytes| bytes as i64)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_list2(pool: *mut c_void, places: *mut Spec, count: *mut usize) -> c_int {
    answer_int(|| {
        // SAFETY: what the program hands over.
        let all = listed(unsafe { Pool::of(pool) }?)?;
        let spec = |(id, name): &(String, String)| Spec { id: owned(id), name: owned(name) };
        // SAFETY: as above.
        unsafe { put_list(&all, spec, places, count) }
    })
}

unsafe fn clean_up(spec: *mut Spec) -> Answer<()> {
    // SAFETY: what the program hands over.
    let spec = unsafe { spec.as_mut() }.ok_or(Errno(libc::EINVAL))?;
    // SAFETY: they came from `rbd_list2`.
    unsafe {
        disowned(&mut spec.id);
        disowned(&mut spec.name);
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_image_spec_cleanup(spec: *mut Spec) {
    // SAFETY: what the program hands over.
    answer_nothing(|| unsafe { clean_up(spec) });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_image_spec_list_cleanup(specs: *mut Spec, count: usize) {
    answer_nothing(|| {
        // SAFETY: what the program hands over.
        (0..count).try_for_each(|number| unsafe { clean_up(specs.add(number)) })
    });
}
