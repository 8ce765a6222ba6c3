//! Images that others were cloned from, or are clones: as programs are told of them.

use super::image::image_of;
use super::snapshots::{OF_USER, id_of};
use crate::entry::{answer, answer_done, answer_int, answer_nothing};
use crate::errno::{Answer, Errno};
use crate::image::{Image, id_text};
use crate::text::{disowned, owned, put, put_all, put_list, tell};
use base::map::{ClusterMap, VolumeInfo};
use base::{LayerId, VolumeId};
use std::ffi::{c_char, c_int, c_void};

/// `rbd_linked_image_spec_t`.
#[repr(C)]
pub struct LinkedImage {
    pool_id: i64,
    pool_name: *mut c_char,
    pool_namespace: *mut c_char,
    image_id: *mut c_char,
    image_name: *mut c_char,
    trash: bool,
}

/// `rbd_snap_spec_t`.
#[repr(C)]
pub struct LinkedSnapshot {
    id: u64,
    namespace_type: c_int,
    name: *mut c_char,
}

/// `rbd_child_info_t`.
#[repr(C)]
pub struct Child {
    pool_name: *mut c_char,
    image_name: *mut c_char,
    image_id: *mut c_char,
    trash: bool,
}

/// An image by its names.
struct Named {
    pool: i64,
    pool_name: String,
    namespace: String,
    id: String,
    name: String,
    is_in_trash: bool,
}

impl Named {
    fn of(map: &ClusterMap, id: VolumeId, info: &VolumeInfo) -> Answer<Named> {
        let pool = map.pools.get(&info.pool).ok_or(Errno(libc::ENOENT))?;
        Ok(Named {
            pool: i64::from(info.pool.0),
            pool_name: pool.name.clone(),
            namespace: info.namespace.clone(),
            id: id_text(id),
            name: info.name.clone(),
            is_in_trash: info.trashed.is_some(),
        })
    }

    fn linked(&self) -> LinkedImage {
        LinkedImage {
            pool_id: self.pool,
            pool_name: owned(&self.pool_name),
            pool_namespace: owned(&self.namespace),
            image_id: owned(&self.id),
            image_name: owned(&self.name),
            trash: self.is_in_trash,
        }
    }

    fn child(&self) -> Child {
        let (pool_name, image_name) = (owned(&self.pool_name), owned(&self.name));
        Child { pool_name, image_name, image_id: owned(&self.id), trash: self.is_in_trash }
    }
}

/// What an image was cloned from, and the number and name of the snapshot.
fn parent_of(image: &Image) -> Answer<(Named, u64, String)> {
    let (layer, map) = (image.parent()?, image.cluster.map_now()?);
    let missing = || Errno(libc::ENOENT);
    let info = map.volumes.get(&layer.volume()).ok_or_else(missing)?;
    let snapshot = map.snapshot(layer).ok_or_else(missing)?;
    Ok((Named::of(&map, layer.volume(), info)?, id_of(layer), snapshot.name.clone()))
}

/// The clones of an image, or of the snapshot as which it is open; `all`: and those that were cloned from these, and so on.
fn clones_of(image: &Image, all: bool) -> Answer<Vec<Named>> {
    let map = image.cluster.map_now()?;
    let snapshot = image.snapshot_name();
    let layer = match &snapshot {
        Some(name) => Some(map.snapshot_named(image.volume, name).ok_or(Errno(libc::ENOENT))?),
        None => None,
    };
    let is_parent = |parent: LayerId| match layer {
        Some(layer) => parent == layer,
        None => parent.volume() == image.volume,
    };
    let there = || map.volumes.iter().filter(|(_, info)| !info.removed);
    let mut found: Vec<_> = there().filter(|(_, info)| info.parent.is_some_and(is_parent)).collect();
    let mut looked_at = 0;
    while all && looked_at < found.len() {
        let parent = *found[looked_at].0;
        found.extend(there().filter(|(_, info)| info.parent.is_some_and(|its| its.volume() == parent)));
        looked_at += 1;
    }
    found.into_iter().map(|(id, info)| Named::of(&map, *id, info)).collect()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_get_parent(
    image: *mut c_void,
    linked: *mut LinkedImage,
    snapshot: *mut LinkedSnapshot,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe {
        let (parent, id, name) = parent_of(image_of(image)?)?;
        if !linked.is_null() {
            tell(linked, parent.linked())?;
        }
        if !snapshot.is_null() {
            tell(snapshot, LinkedSnapshot { id, namespace_type: OF_USER, name: owned(&name) })?;
        }
        Ok(())
    })
}

/// Writes what the parent is called; what is not asked for is null.
unsafe fn put_parent(image: *mut c_void, places: [(*mut c_char, usize); 4]) -> Answer<()> {
    // SAFETY: as the caller promises.
    let (parent, _, snapshot) = parent_of(unsafe { image_of(image) }?)?;
    let texts = [&parent.pool_name, &parent.name, &parent.id, &snapshot];
    for ((place, bytes), text) in places.into_iter().zip(texts) {
        if !place.is_null() {
            // SAFETY: as above.
            unsafe { put(text, place, bytes) }?;
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_get_parent_info(
    image: *mut c_void,
    pool: *mut c_char,
    pool_bytes: usize,
    name: *mut c_char,
    name_bytes: usize,
    snapshot: *mut c_char,
    snapshot_bytes: usize,
) -> c_int {
    let nowhere = (std::ptr::null_mut(), 0);
    let places = [(pool, pool_bytes), (name, name_bytes), nowhere, (snapshot, snapshot_bytes)];
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { put_parent(image, places) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_get_parent_info2(
    image: *mut c_void,
    pool: *mut c_char,
    pool_bytes: usize,
    name: *mut c_char,
    name_bytes: usize,
    id: *mut c_char,
    id_bytes: usize,
    snapshot: *mut c_char,
    snapshot_bytes: usize,
) -> c_int {
    let places = [(pool, pool_bytes), (name, name_bytes), (id, id_bytes), (snapshot, snapshot_bytes)];
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { put_parent(image, places) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_list_children(
    image: *mut c_void,
    pools: *mut c_char,
    pools_bytes: *mut usize,
    names: *mut c_char,
    names_bytes: *mut usize,
) -> isize {
    answer(|| {
        // SAFETY: what the program hands over.
        let mut all = clones_of(unsafe { image_of(image) }?, false)?;
        all.retain(|child| !child.is_in_trash);
        // SAFETY: as above. Each is told how large it has to be.
        let (pools, names) = unsafe {
            (
                put_all(all.iter().map(|child| child.pool_name.as_str()), pools, pools_bytes),
                put_all(all.iter().map(|child| child.name.as_str()), names, names_bytes),
            )
        };
        pools.and(names).map(|_| all.len() as i64)
    }) as isize
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_list_children2(
    image: *mut c_void,
    places: *mut Child,
    room: *mut c_int,
) -> c_int {
    answer_int(|| {
        // SAFETY: what the program hands over.
        let (image, room) = unsafe { (image_of(image)?, room.as_mut().ok_or(Errno(libc::EINVAL))?) };
        let all = clones_of(image, false)?;
        let needed = all.len() as c_int + 1;
        let had = std::mem::replace(room, needed);
        if had < needed {
            return Err(Errno(libc::ERANGE));
        }
        let (nowhere, mut count) = (std::ptr::null_mut(), all.len());
        let last = Child { pool_name: nowhere, image_name: nowhere, image_id: nowhere, trash: false };
        // SAFETY: as above. One without names ends the list.
        unsafe {
            put_list(&all, Named::child, places, &raw mut count)?;
            tell(places.add(all.len()), last)?;
        }
        Ok(all.len() as i64)
    })
}

unsafe fn list_clones(
    image: *mut c_void,
    places: *mut LinkedImage,
    room: *mut usize,
    all: bool,
) -> Answer<()> {
    // SAFETY: as the caller promises.
    let all = clones_of(unsafe { image_of(image) }?, all)?;
    // SAFETY: as above.
    unsafe { put_list(&all, Named::linked, places, room) }.map(drop)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_list_children3(
    image: *mut c_void,
    places: *mut LinkedImage,
    room: *mut usize,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { list_clones(image, places, room, false) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_list_descendants(
    image: *mut c_void,
    places: *mut LinkedImage,
    room: *mut usize,
) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { list_clones(image, places, room, true) })
}

unsafe fn clean_up(linked: *mut LinkedImage) -> Answer<()> {
    // SAFETY: what the program hands over.
    let linked = unsafe { linked.as_mut() }.ok_or(Errno(libc::EINVAL))?;
    for text in
        [&mut linked.pool_name, &mut linked.pool_namespace, &mut linked.image_id, &mut linked.image_name]
    {
        // SAFETY: they came from `owned`.
        unsafe { disowned(text) };
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_linked_image_spec_cleanup(linked: *mut LinkedImage) {
    // SAFETY: what the program hands over.
    answer_nothing(|| unsafe { clean_up(linked) });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_linked_image_spec_list_cleanup(linked: *mut LinkedImage, count: usize) {
    // SAFETY: what the program hands over.
    answer_nothing(|| (0..count).try_for_each(|number| unsafe { clean_up(linked.add(number)) }));
}

unsafe fn clean_up_child(child: *mut Child) -> Answer<()> {
    // SAFETY: what the program hands over.
    let child = unsafe { child.as_mut() }.ok_or(Errno(libc::EINVAL))?;
    for text in [&mut child.pool_name, &mut child.image_name, &mut child.image_id] {
        // SAFETY: they came from `owned`.
        unsafe { disowned(text) };
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_list_child_cleanup(child: *mut Child) {
    // SAFETY: what the program hands over.
    answer_nothing(|| unsafe { clean_up_child(child) });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_list_children_cleanup(children: *mut Child, count: usize) {
    // SAFETY: what the program hands over.
    answer_nothing(|| (0..count).try_for_each(|number| unsafe { clean_up_child(children.add(number)) }));
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_snap_spec_cleanup(snapshot: *mut LinkedSnapshot) {
    // SAFETY: what the program hands over; its text came from `owned`.
    answer_nothing(|| unsafe {
        disowned(&mut snapshot.as_mut().ok_or(Errno(libc::EINVAL))?.name);
        Ok(())
    });
}
