//! The exclusive lock: who owns an image. Taken by the first change and given up when another has something to change, or taken and
//! given up by hand, and kept in between.

use super::image::image_of;
use crate::entry::{answer_done, answer_nothing};
use crate::errno::{Answer, Errno};
use crate::image::Image;
use crate::text::{disowned, given, owned, put_list, tell};
use base::Generation;
use cluster::{AttachRecord, Attachments, VolumeChange};
use std::ffi::{c_char, c_int, c_void};

/// `rbd_lock_mode_t`.
const EXCLUSIVE: c_int = 0;
const SHARED: c_int = 1;
/// What an owner is called, in front of the generation under which it has the image.
const OWNER: &str = "client.";

impl Image {
    /// Who has it attached.
    pub(super) fn owners(&self) -> Answer<Vec<AttachRecord>> {
        self.cluster.ask(Attachments { volume: self.volume })
    }

    /// Whether this program owns it.
    ///
    /// # Errors
    /// `ESHUTDOWN`: it did, and somebody has taken it away.
    fn is_owner(&self) -> Answer<bool> {
        loop {
            let Some(own) = self.owned()? else { return Ok(false) };
            let map = self.cluster.map_now()?;
            if map.volumes.get(&self.volume).is_some_and(|info| info.generation == own) {
                return Ok(true);
            }
            // It may have been given up meanwhile. If not, what is wanted from now on is refused.
            let (volume, now) = (self.volume, map.volumes.get(&self.volume).map(|info| info.generation));
            self.cluster.wait_for(move |map| map.volumes.get(&volume).map(|info| info.generation) >= now);
            self.catch_up()?;
            if self.owned()? == Some(own) {
                return Err(Errno(libc::ESHUTDOWN));
            }
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_is_exclusive_lock_owner(image: *mut c_void, place: *mut c_int) -> c_int {
    // SAFETY: what the program hands over.
    answer_done(|| unsafe { tell(place, c_int::from(image_of(image)?.is_owner()?)) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_lock_acquire(image: *mut c_void, mode: c_int) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let image = unsafe { image_of(image) }?;
        image.check_writable()?;
        match mode {
            EXCLUSIVE => image.own(true),
            SHARED => Err(Errno(libc::EOPNOTSUPP)),
            _ => Err(Errno(libc::EINVAL)),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_lock_release(image: *mut c_void) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let image = unsafe { image_of(image) }?;
        match image.is_owner()? {
            true => image.let_go(),
            false => Err(Errno(libc::EINVAL)),
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_lock_get_owners(
    image: *mut c_void,
    mode: *mut c_int,
    places: *mut *mut c_char,
    room: *mut usize,
) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let all = unsafe { image_of(image) }?.owners()?;
        let first = all.first().ok_or(Errno(libc::ENOENT))?;
        let name = |owner: &AttachRecord| owned(&format!("{OWNER}{}", owner.generation.0));
        // SAFETY: as above.
        unsafe {
            tell(mode, if first.shared { SHARED } else { EXCLUSIVE })?;
            put_list(&all, name, places, room).map(drop)
        }
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_lock_get_owners_cleanup(owners: *mut *mut c_char, count: usize) {
    answer_nothing(|| {
        for number in 0..count {
            // SAFETY: what the program hands over; they came from `owned`.
            unsafe { disowned(owners.add(number).as_mut().ok_or(Errno(libc::EINVAL))?) };
        }
        Ok(())
    });
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rbd_lock_break(image: *mut c_void, mode: c_int, owner: *const c_char) -> c_int {
    answer_done(|| {
        // SAFETY: what the program hands over.
        let (image, owner) = unsafe { (image_of(image)?, given(owner)?) };
        if mode != EXCLUSIVE {
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let generation = owner.strip_prefix(OWNER).and_then(|number| number.parse().ok()).map(Generation);
        let generation = generation.ok_or(Errno(libc::EINVAL))?;
        let all = image.owners()?;
        if all.is_empty() {
            return Err(Errno(libc::ENOENT));
        }
        if all.iter().all(|other| other.generation != generation) {
            // Another owns it by now.
            return Err(Errno(libc::EBUSY));
        }
        image.cluster.change(VolumeChange::TakeAway { volume: image.to_change()?, generation }).map(drop)
    })
}
