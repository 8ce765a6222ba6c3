//! What programs want of an image that volumes have no use for: an order, striping, features, how many snapshots it may have. It is
//! noted beside the volume and told to who asks; what is stored is stored the same way whatever it says.

use super::options::Wish;
use crate::cluster::Connected;
use crate::errno::{Answer, Errno};
use crate::image::Image;
use base::OBJECT_BYTES;
use cluster::{ChangeVolumes, Metadata, VolumeChange};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime};

/// What the keys of these notes begin with. Programs neither see nor set such keys.
const OWN: &str = "rbd:";

/// How long closing an image waits until it is noted when it was changed.
const NOTED_LIMIT: Duration = Duration::from_secs(2);
/// Orders that images of Ceph may have: logarithms of objects' bytes.
const ORDERS: RangeInclusive<u64> = 12..=25;
/// The order of images for which none is asked.
const ORDER: u64 = OBJECT_BYTES.trailing_zeros() as u64;

/// Features by Ceph's names, in their order, and bits.
pub(super) const FEATURES: [(&str, u64); 12] = [
    ("data-pool", 1 << 7),
    ("deep-flatten", 1 << 5),
    ("dirty-cache", 1 << 11),
    ("exclusive-lock", 1 << 2),
    ("fast-diff", 1 << 4),
    ("journaling", 1 << 6),
    ("layering", 1 << 0),
    ("migrating", 1 << 9),
    ("non-primary", 1 << 10),
    ("object-map", 1 << 3),
    ("operations", 1 << 8),
    ("striping", STRIPING),
];
const STRIPING: u64 = 1 << 1;
/// What those stand for that an image may have, volumes have anyway.
const POSSIBLE: u64 = USUAL | STRIPING;
/// Those of images for which none are asked.
const USUAL: u64 = 61;
/// Those that may be had and given up later.
pub(super) const CHANGEABLE: u64 = 1 << 2 | 1 << 3 | 1 << 4;

/// The time, in seconds since 1970.
pub(super) fn now() -> u64 {
    SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs())
}

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attributes {
    pub order: u64,
    /// In bytes.
    pub stripe_unit: u64,
    pub stripe_count: u64,
    pub features: u64,
    /// In seconds since 1970; 0: not known.
    pub created: u64,
    /// When somebody last closed it who had written to it; 0: not known.
    pub modified: u64,
    /// None: as many as volumes may have.
    pub snapshots_max: Option<u64>,
    /// The smallest size that a clone has had, in bytes; None: never a smaller one.
    pub overlap_max: Option<u64>,
}

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes {
            order: ORDER,
            stripe_unit: OBJECT_BYTES,
            stripe_count: 1,
            features: USUAL,
            created: 0,
            modified: 0,
            snapshots_max: None,
            overlap_max: None,
        }
    }
}

impl Attributes {
    /// Those of an image that is made now, as somebody wishes; what is not wished is as `self` has it.
    ///
    /// # Errors
    /// `EDOM`: no image has that order. `EINVAL`: no image is striped so. `ENOSYS`: a feature that volumes have nothing for.
    pub(super) fn as_wished(&self, wish: &Wish) -> Answer<Attributes> {
        let order = wish.order.unwrap_or(self.order);
        if !ORDERS.contains(&order) {
            return Err(Errno(libc::EDOM));
        }
        let mut features = wish.features.unwrap_or(self.features);
        features = (features | wish.features_set) & !wish.features_clear;
        let object_bytes: u64 = 1 << order;
        let (stripe_unit, stripe_count) = match (wish.stripe_unit, wish.stripe_count) {
            // Of another order, its stripes are other ones.
            (None, None) if order == self.order => (self.stripe_unit, self.stripe_count),
            (None, None) => (object_bytes, 1),
            (Some(unit), Some(count)) => (unit, count),
            _ => return Err(Errno(libc::EINVAL)),
        };
        if stripe_unit == 0 || stripe_count == 0 || !object_bytes.is_multiple_of(stripe_unit) {
            return Err(Errno(libc::EINVAL));
        }
        match (stripe_unit, stripe_count) == (object_bytes, 1) {
            true => features &= !STRIPING,
            false => features |= STRIPING,
        }
        check(features)?;
        let made = now();
        Ok(Attributes {
            order,
            stripe_unit,
            stripe_count,
            features,
            created: made,
            modified: made,
            snapshots_max: None,
            overlap_max: None,
        })
    }

    pub(super) fn of(notes: &BTreeMap<String, String>) -> Attributes {
        let usual = Attributes::default();
        let number = |name: &str| notes.get(&key(name))?.parse::<u64>().ok();
        let order = number("order").filter(|order| ORDERS.contains(order)).unwrap_or(usual.order);
        Attributes {
            order,
            stripe_unit: number("stripe_unit").unwrap_or(1 << order),
            stripe_count: number("stripe_count").unwrap_or(usual.stripe_count),
            features: number("features").unwrap_or(usual.features),
            created: number("created").unwrap_or(usual.created),
            modified: number("modified").unwrap_or(usual.modified),
            snapshots_max: number("snapshots_max"),
            overlap_max: number("overlap_max"),
        }
    }

    /// What is to be noted of them: what is otherwise than usual.
    pub(super) fn notes(&self) -> BTreeMap<String, String> {
        let usual = Attributes { stripe_unit: 1 << self.order, ..Attributes::default() };
        let all = [
            ("order", self.order, usual.order),
            ("stripe_unit", self.stripe_unit, usual.stripe_unit),
            ("stripe_count", self.stripe_count, usual.stripe_count),
            ("features", self.features, usual.features),
            ("created", self.created, usual.created),
            ("modified", self.modified, usual.modified),
        ];
        let other = all.into_iter().filter(|(_, value, usual)| value != usual);
        let bounds = [("snapshots_max", self.snapshots_max), ("overlap_max", self.overlap_max)];
        let bounds = bounds.into_iter().filter_map(|(name, max)| Some((name, max?, 0)));
        other.chain(bounds).map(|(name, value, _)| (key(name), value.to_string())).collect()
    }
}

impl Attributes {
    /// Has a volume's notes say these, which say others.
    pub(super) fn take_over(&self, cluster: &Connected, volume: &str, from: &Attributes) -> Answer<()> {
        let (before, now) = (from.notes(), self.notes());
        for key in before.keys().chain(now.keys()) {
            if before.get(key) != now.get(key) {
                replace(cluster, volume, &key[OWN.len()..], now.get(key).cloned())?;
            }
        }
        Ok(())
    }
}

/// Whether features may be had.
///
/// # Errors
/// `ENOSYS`.
pub(super) fn check(features: u64) -> Answer<()> {
    if features & !POSSIBLE == 0 { Ok(()) } else { Err(Errno(libc::ENOSYS)) }
}

fn key(name: &str) -> String {
    format!("{OWN}{name}")
}

/// Whether a key is one of these notes.
pub(super) fn is_own(key: &str) -> bool {
    key.starts_with(OWN)
}

/// One of these notes.
pub(super) fn text_of<'a>(notes: &'a BTreeMap<String, String>, name: &str) -> Option<&'a str> {
    notes.get(&key(name)).map(String::as_str)
}

/// Notes one of them anew beside a volume, by its full name, or forgets it.
pub(super) fn replace(cluster: &Connected, volume: &str, name: &str, value: Option<String>) -> Answer<()> {
    let (volume, key, is_gone) = (volume.to_owned(), key(name), value.is_none());
    let change = match value {
        Some(value) => VolumeChange::SetMetadata { volume, key, value },
        None => VolumeChange::RemoveMetadata { volume, key },
    };
    match cluster.change(change) {
        Err(Errno(libc::ENOENT)) if is_gone => Ok(()),
        done => done.map(drop),
    }
}

/// What is noted of the image that is a volume, by its full name. Whoever may not see that is told what is usual.
pub(super) fn attributes_of(cluster: &Connected, volume: &str) -> Answer<Attributes> {
    match cluster.ask(Metadata { volume: volume.to_owned() }) {
        Ok(notes) => Ok(Attributes::of(&notes)),
        Err(Errno(libc::EACCES)) => Ok(Attributes::default()),
        Err(error) => Err(error),
    }
}

impl Image {
    /// What is noted of it.
    pub(super) fn attributes(&self) -> Answer<Attributes> {
        attributes_of(&self.cluster, &self.name()?)
    }

    /// Notes that it was changed until now. Nobody waits for that for long.
    pub(super) fn note_modified(&self) -> Answer<()> {
        let (volume, key, value) = (self.to_change()?, key("modified"), now().to_string());
        let change = VolumeChange::SetMetadata { volume, key, value };
        self.cluster.ask_within(ChangeVolumes { change }, Some(NOTED_LIMIT)).map(drop)
    }

    /// Notes one of them anew, or forgets it.
    pub(super) fn note(&self, name: &str, value: Option<u64>) -> Answer<()> {
        replace(&self.cluster, &self.to_change()?, name, value.map(|value| value.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read_again_and_what_is_usual_is_not_noted() {
        let usual = Attributes::default();
        assert!(usual.notes().is_empty());
        let wish = Wish {
            order: Some(20),
            stripe_unit: Some(1 << 16),
            stripe_count: Some(8),
            features: Some(1),
            ..Wish::default()
        };
        let mut made = usual.as_wished(&wish).unwrap();
        (made.snapshots_max, made.overlap_max) = (Some(3), Some(0));
        assert_eq!((made.features, made.created > 0), (1 | STRIPING, true));
        assert_eq!(Attributes::of(&made.notes()), made);
        // Nonsense is what is usual.
        let notes = [("order", "99"), ("features", "x")].map(|(name, value)| (key(name), value.to_owned()));
        assert_eq!(Attributes::of(&notes.into()), usual);
    }

    #[test]
    fn a_clone_is_striped_as_its_parent_unless_its_objects_are_other_ones() {
        let wish = Wish { stripe_unit: Some(1 << 20), stripe_count: Some(8), ..Wish::default() };
        let parent = Attributes::default().as_wished(&wish).unwrap();
        let same = parent.as_wished(&Wish::default()).unwrap();
        assert_eq!((same.stripe_unit, same.stripe_count), (1 << 20, 8));
        let other = parent.as_wished(&Wish { order: Some(25), ..Wish::default() }).unwrap();
        assert_eq!((other.stripe_unit, other.stripe_count, other.features), (1 << 25, 1, USUAL));
    }

    #[test]
    fn what_no_image_can_be_is_refused() {
        let usual = Attributes::default();
        let (unit, count) = (Some(1 << 16), Some(4));
        for (wish, error) in [
            (Wish { order: Some(11), ..Wish::default() }, libc::EDOM),
            (Wish { order: Some(26), ..Wish::default() }, libc::EDOM),
            (Wish { stripe_unit: unit, ..Wish::default() }, libc::EINVAL),
            (Wish { stripe_count: count, ..Wish::default() }, libc::EINVAL),
            (Wish { stripe_unit: Some(100), stripe_count: count, ..Wish::default() }, libc::EINVAL),
            (Wish { stripe_unit: Some(1 << 50), stripe_count: count, ..Wish::default() }, libc::EINVAL),
            (Wish { features: Some(1 << 6), ..Wish::default() }, libc::ENOSYS),
            (Wish { features_set: 1 << 40, ..Wish::default() }, libc::ENOSYS),
        ] {
            assert_eq!(usual.as_wished(&wish), Err(Errno(error)), "{wish:?}");
        }
    }
}
