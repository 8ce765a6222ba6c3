//! Images that hold what another holds now, and depend on nothing.

use super::directory::create;
use super::image::image_of;
use super::options::wished;
use super::snapshots::is_of_group;
use crate::entry::{Progress, answer_done, tell};
use crate::errno::{Answer, Errno};
use crate::image::{Image, Opening};
use crate::memory::Memory;
use crate::rados::Pool;
use crate::text::given;
use base::LayerId;
use client::Change;
use std::ffi::{c_char, c_int, c_void};

/// So much is asked for at once, in bytes.
const STEP_BYTES: u64 = 1 << 30;
/// So much is copied at once, in bytes.
const COPIED_BYTES: u64 = 4 << 20;

/// Copies what is otherwise than a snapshot of it, to an image that holds what that held; without one, to an image that holds nothing.
fn copy(from: &Image, since: Option<LayerId>, to: &Image, (progress, told): Telling) -> Answer<()> {
    let total = from.bytes()?;
    if to.bytes()? < total {
        return Err(Errno(libc::EINVAL));
    }
    let mut bytes = vec![0u8; COPIED_BYTES as usize];
    let mut at = 0;
    while at < total {
        for (length, change) in from.changed(at, STEP_BYTES.min(total - at), since)? {
            let end = at + length;
            if change == Change::Zeros && since.is_some() {
                to.wait_for(|completion| to.zero((at, length), |_| 0, completion))?;
            }
            while at < end {
                let count = COPIED_BYTES.min(end - at);
                if change == Change::Data {
                    copy_part(from, to, at, &mut bytes[..count as usize])?;
                }
                at += count;
                tell(progress, (at, total), told)?;
            }
        }
    }
    to.wait_for(|completion| to.flush(completion)).map(drop)
}

fn copy_part(from: &Image, to: &Image, at: u64, bytes: &mut [u8]) -> Answer<()> {
    let length = bytes.len() as u64;
    let place = bytes.as_mut_ptr().cast();
    // SAFETY: the bytes are there until both have ended, and nobody else has them.
    let memory = || unsafe { Memory::at(place, length as usize) };
    let read = from.wait_for(|completion| from.read(at, memory()?, completion))?;
    if read.cast_unsigned() < length {
        // It was made smaller meanwhile.
        return Err(Errno(libc::EINVAL));
    }
    to.wait_for(|completion| to.write((at, length), memory()?, |_| 0, completion)).map(drop)
}

/// Copies all that an image holds, with its snapshots, or with those up to the one as which it is open.
fn copy_deep(from: &Image, to: &Image, telling: Telling) -> Answer<()> {
    let map = from.cluster.map_now()?;
    let until = from.snapshot_name().and_then(|name| map.snapshot_named(from.volume, &name));
    let volume = from.name()?;
    let (mut since, mut protected) = (None, Vec::new());
    for (layer, info) in map.snapshots_of(from.volume) {
        if is_of_group(&info.name) || until.is_some_and(|until| layer > until) {
            continue;
        }
        let opening =
            Opening { volume: volume.clone(), snapshot: Some(info.name.clone()), is_read_only: true };
        let snapshot = Image::open(from.cluster.clone(), opening)?;
        to.resize(info.bytes, true)?;
        copy(&snapshot, since, to, telling)?;
        to.create_snapshot(&info.name)?;
        if info.protected {
            protected.push(&info.name);
        }
        since = Some(layer);
    }
    if until.is_none() {
        to.resize(from.bytes()?, true)?;
        copy(from, since, to, telling)?;
    }
    // What fails before is removed, which protected snapshots would prevent.
    protected.into_iter().try_for_each(|name| to.protect_snapshot(name, true))
}

/// Makes the image that is copied to, and copies. If that fails there is none.
unsafe fn copy_to_new(
    image: *mut c_void,
    pool: *mut c_void,
    name: *const c_char,
    options: *mut c_void,
    work: impl FnOnce(&Image, &Image) -> Answer<()>,
) -> Answer<()> {
    // SAFETY: as the caller promises.
    let (from, pool, name) = unsafe { (image_of(image)?, Pool::of(pool)?, given(name)?) };
    from.check_may_wait()?;
    // SAFETY: as above.
    let attributes = unsafe { wished(options, &from.attributes()?) }?;
    create(pool, name, from.bytes()?, &attributes)?;
    let volume = pool.name_of(name)?;
    let opening = Opening { volume: volume.clone(), snapshot: None, is_read_only: false };
    let copied = Image::open(pool.cluster().clone(), opening).and_then(|to| work(from, &to));
    if copied.is_err() {
        // It would be taken for a copy.
        let _ = pool.cluster().change(cluster::VolumeChange::Remove { name: volume });
    }
    copied
}

unsafe fn copy_flat(
    image: *mut c_void,
    pool: *mut c_void,
    name: *const c_char,
    options: *mut c_void,
    telling: Telling,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        copy_to_new(image, pool, name, options, |from, to| copy(from, None, to, telling))
    })
}

/// What a program wants to be called with.
type Telling = (Progress, *mut c_void);
const SILENTLY: Telling = (None, std::ptr::null_mut());

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_copy(image: *mut c_void, pool: *mut c_void, name: *const c_char) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { copy_flat(image, pool, name, std::ptr::null_mut(), SILENTLY) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_copy2(image: *mut c_void, to: *mut c_void) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { copy(image_of(image)?, None, image_of(to)?, SILENTLY) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_copy_with_progress2(
    image: *mut c_void,
    to: *mut c_void,
    progress: Progress,
    told: *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { copy(image_of(image)?, None, image_of(to)?, (progress, told)) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_copy_with_progress(
    image: *mut c_void,
    pool: *mut c_void,
    name: *const c_char,
    progress: Progress,
    told: *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { copy_flat(image, pool, name, std::ptr::null_mut(), (progress, told)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_copy3(
    image: *mut c_void,
    pool: *mut c_void,
    name: *const c_char,
    options: *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { copy_flat(image, pool, name, options, SILENTLY) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_copy4(
    image: *mut c_void,
    pool: *mut c_void,
    name: *const c_char,
    options: *mut c_void,
    _sparse_bytes: usize,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { copy_flat(image, pool, name, options, SILENTLY) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_copy_with_progress3(
    image: *mut c_void,
    pool: *mut c_void,
    name: *const c_char,
    options: *mut c_void,
    progress: Progress,
    told: *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { copy_flat(image, pool, name, options, (progress, told)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_copy_with_progress4(
    image: *mut c_void,
    pool: *mut c_void,
    name: *const c_char,
    options: *mut c_void,
    progress: Progress,
    told: *mut c_void,
    _sparse_bytes: usize,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { copy_flat(image, pool, name, options, (progress, told)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_deep_copy(
    image: *mut c_void,
    pool: *mut c_void,
    name: *const c_char,
    options: *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    unsafe { rbd_deep_copy_with_progress(image, pool, name, options, None, std::ptr::null_mut()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_deep_copy_with_progress(
    image: *mut c_void,
    pool: *mut c_void,
    name: *const c_char,
    options: *mut c_void,
    progress: Progress,
    told: *mut c_void,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        copy_to_new(image, pool, name, options, |from, to| copy_deep(from, to, (progress, told)))
    })
}
