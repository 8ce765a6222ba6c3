//! A type for every id, epoch and sequence, so that no two can be swapped.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

macro_rules! number_id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

number_id!(/// One node: a host's daemon.
    NodeId(u32), "node.");
number_id!(/// One OSD: a drive or a slice of one. Never reused within a cluster.
    OsdId(u32), "osd.");
number_id!(/// One pool. Never reused within a cluster.
    PoolId(u32), "pool.");
number_id!(/// One volume. Never reused within a cluster.
    VolumeId(u64), "volume.");
number_id!(/// One attached client, drawn at random when it starts.
    ClientId(u64), "client.");
number_id!(/// One connection, as whoever drives a state machine names it. Never reused.
    LinkId(u64), "link.");
number_id!(/// The version of a placement group's configuration. Grows by one with each change.
    Epoch(u32), "e");
number_id!(/// The place of a write in its placement group's order. Never reused, in any epoch or [`History`].
    Sequence(u64), "");
number_id!(/// How often the order of a placement group began behind all that there was of it: where it was given up and began
    /// anew, with nothing, or had used much of one history up.
    History(u16), "history.");
number_id!(/// How often a volume was attached exclusively; an older one is fenced.
    Generation(u32), "g");
number_id!(/// One schedule of snapshots. Drawn at random, so that one that bears the name of another which was removed is not taken for it.
    ScheduleId(u64), "schedule.");
number_id!(/// One time that some volume was made smaller, or lost a snapshot. Grows with each, and is never reused within a cluster. 0 is
    /// none.
    CutId(u64), "cut.");

/// A layer of a volume: what was written to it between two of its snapshots. A volume writes to its newest layer; what that has
/// not is looked for in the older ones. Never reused within a cluster.
///
/// The lower 46 bits are the volume, the upper 18 number its layers, from 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LayerId(pub u64);

impl LayerId {
    /// A volume has no layer of a higher number.
    pub const NUMBER_MAX: u32 = (1 << (64 - VolumeId::BITS)) - 1;

    /// The volume that it is a layer of.
    #[must_use]
    pub const fn volume(self) -> VolumeId {
        VolumeId(self.0 & ((1 << VolumeId::BITS) - 1))
    }

    /// Its number among the layers of its volume: it is newer than those of lower ones.
    #[must_use]
    pub const fn number(self) -> u32 {
        (self.0 >> VolumeId::BITS) as u32
    }
}

impl fmt::Display for LayerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.number() {
            0 => self.volume().fmt(formatter),
            number => write!(formatter, "{} layer {number}", self.volume()),
        }
    }
}

impl VolumeId {
    /// Bits that count.
    const BITS: u32 = 46;
    /// Those that are a volume's family.
    const FAMILY_BITS: u32 = 28;

    /// The last volume that is no clone: see [`Self::family`].
    pub const FAMILY_MAX: VolumeId = VolumeId((1 << VolumeId::FAMILY_BITS) - 1);
    /// The highest number of a clone within its family.
    pub const CLONE_MAX: u32 = (1 << (VolumeId::BITS - VolumeId::FAMILY_BITS)) - 1;

    /// The clone of that number in its family.
    ///
    /// # Panics
    /// If the number is beyond [`Self::CLONE_MAX`].
    #[must_use]
    pub const fn clone_of_family(self, number: u32) -> VolumeId {
        assert!(number <= VolumeId::CLONE_MAX, "a family has no such clone");
        VolumeId(self.family().0 | (number as u64) << VolumeId::FAMILY_BITS)
    }

    /// The volume from whose snapshots it was cloned, or from clones of which; itself where it is no clone. The objects of a whole
    /// family lie in the same placement groups, place by place. The lower 28 bits are the family, the 18 above them number its
    /// clones, from 1.
    #[must_use]
    pub const fn family(self) -> VolumeId {
        VolumeId(self.0 & VolumeId::FAMILY_MAX.0)
    }

    /// Its number among the clones of its family; 0 of one that is no clone.
    #[must_use]
    pub const fn clone_number(self) -> u32 {
        (self.0 >> VolumeId::FAMILY_BITS) as u32
    }

    /// Whether it was cloned from another.
    #[must_use]
    pub const fn is_clone(self) -> bool {
        self.0 != self.family().0
    }

    /// Its layer of that number.
    ///
    /// # Panics
    /// If the number is beyond [`LayerId::NUMBER_MAX`].
    #[must_use]
    pub const fn layer(self, number: u32) -> LayerId {
        assert!(number <= LayerId::NUMBER_MAX, "a volume has no such layer");
        LayerId(self.0 | (number as u64) << VolumeId::BITS)
    }

    /// The first layer that it wrote to.
    #[must_use]
    pub const fn first_layer(self) -> LayerId {
        self.layer(0)
    }
}

impl From<VolumeId> for LayerId {
    fn from(volume: VolumeId) -> LayerId {
        volume.first_layer()
    }
}

impl Sequence {
    /// The sequence that follows this one. No order comes to the last one there is, which follows itself; a peer may say it.
    #[must_use]
    pub fn next(self) -> Sequence {
        Sequence(self.0.saturating_add(1))
    }

    /// The history that it belongs to.
    #[must_use]
    pub fn history(self) -> History {
        History((self.0 >> History::SEQUENCE_BITS) as u16)
    }

    /// How many of its history come before it.
    #[must_use]
    pub fn in_history(self) -> u64 {
        self.0 - self.history().floor().0
    }

    /// Whether no other one of its history comes behind it.
    #[must_use]
    pub fn ends_history(self) -> bool {
        self.0.trailing_ones() >= History::SEQUENCE_BITS
    }
}

impl History {
    /// A history has so many sequences as these bits can tell: 100,000 writes a second take 89 years for them.
    const SEQUENCE_BITS: u32 = 48;

    /// The sequence behind which the order of this history begins. That of no history before it comes so far: whatever a member
    /// says that it has of an earlier one is older than everything in this one.
    #[must_use]
    pub fn floor(self) -> Sequence {
        Sequence(u64::from(self.0) << History::SEQUENCE_BITS)
    }

    /// Whether the group is in no other history than the one it began in.
    #[must_use]
    pub fn is_first(&self) -> bool {
        self.0 == 0
    }

    /// The one behind it, which begins when the group is given up. `None` behind the last one.
    #[must_use]
    pub fn next(self) -> Option<History> {
        self.0.checked_add(1).map(History)
    }
}

/// A placement group: a pool and the group's number in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PgId {
    /// The pool.
    pub pool: PoolId,
    /// Below the pool's number of groups.
    pub index: u32,
}

impl PgId {
    /// The most groups that a pool can have.
    pub const COUNT_MAX: u32 = 1 << 16;

    /// The most groups that an OSD should hold copies of. With their logs full they take a quarter of the room that its
    /// checkpoints have, and with more than three times as many no object finds room beside them.
    pub const PER_OSD_MAX: u32 = 2000;

    /// The group that holds `object` of all layers of a [family](VolumeId::family). Objects that follow each other fall to different groups.
    ///
    /// # Panics
    /// If `pg_count` is 0, which no pool's is.
    #[must_use]
    pub fn of_object(pool: PoolId, pg_count: u32, layer: impl Into<LayerId>, object: u32) -> PgId {
        assert!(pg_count > 0, "a pool has at least one placement group");
        // The family chooses where its walk through the groups starts, the object steps along it:
        // any run of `pg_count` objects is spread perfectly evenly.
        let start = crate::hash::mix(layer.into().volume().family().0.wrapping_add(0x9e37_79b9_7f4a_7c15));
        let index = (start.wrapping_add(u64::from(object))) % u64::from(pg_count);
        PgId { pool, index: index as u32 }
    }

    /// Whether a group of this number holds an object in a pool of `modulus` groups: see [`Self::of_object`].
    ///
    /// # Panics
    /// If `modulus` is 0.
    #[must_use]
    pub fn holds(self, modulus: u32, layer: impl Into<LayerId>, object: u32) -> bool {
        PgId::of_object(self.pool, modulus, layer, object) == self
    }

    /// The group that takes half of this one's objects when its modulus grows from `modulus` to twice that: who has a
    /// remainder of `index` by the one has either `index` or this one's by the other.
    #[must_use]
    pub fn child(self, modulus: u32) -> PgId {
        PgId { index: self.index + modulus, ..self }
    }
}

impl fmt::Display for PgId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.pool.0, self.index)
    }
}

impl FromStr for PgId {
    type Err = String;
    fn from_str(text: &str) -> Result<PgId, String> {
        let wrong = || format!("{text:?} is not a placement group; write it as POOL.INDEX, for example 1.17");
        let (pool, index) = text.split_once('.').ok_or_else(wrong)?;
        Ok(PgId {
            pool: PoolId(pool.parse().map_err(|_| wrong())?),
            index: index.parse().map_err(|_| wrong())?,
        })
    }
}

impl Serialize for PgId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PgId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<PgId, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// An object as a store knows it: which group it belongs to, and which 4 MiB piece of which layer it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// The group that orders its writes.
    pub pg: PgId,
    /// The layer it is a piece of.
    pub layer: LayerId,
    /// Offset in the volume divided by 4 MiB.
    pub object: u32,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} object {} (pg {})", self.layer, self.object, self.pg)
    }
}

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub uuid::Uuid);

        impl $name {
            /// The 16 bytes that go on the wire and on the drive.
            #[must_use]
            pub fn to_bytes(self) -> [u8; 16] {
                *self.0.as_bytes()
            }
            /// From the 16 bytes of [`Self::to_bytes`].
            #[must_use]
            pub fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(uuid::Uuid::from_bytes(bytes))
            }
        }
        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(formatter)
            }
        }
    };
}

uuid_id!(/// A cluster, drawn at random when it is made.
    ClusterId);
uuid_id!(/// One formatting of one drive, drawn at random.
    OsdUuid);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_of_objects_is_spread_evenly_over_the_groups() {
        let mut counts = vec![0u32; 64];
        for object in 0..640 {
            counts[PgId::of_object(PoolId(1), 64, VolumeId(7), object).index as usize] += 1;
        }
        assert!(counts.iter().all(|&count| count == 10), "{counts:?}");
    }

    #[test]
    fn a_group_that_splits_shares_its_objects_with_one_other() {
        for modulus in [1, 3, 16, 1 << 15] {
            let (mut kept, mut given) = (0, 0);
            for object in 0..4 * modulus {
                let parent = PgId::of_object(PoolId(1), modulus, VolumeId(7), object);
                let now = PgId::of_object(PoolId(1), 2 * modulus, VolumeId(7), object);
                assert!(
                    parent.holds(modulus, VolumeId(7), object) && now.holds(2 * modulus, VolumeId(7), object)
                );
                assert!(
                    now == parent || now == parent.child(modulus),
                    "{now} is of neither half of {parent}"
                );
                kept += u32::from(now == parent);
                given += u32::from(now != parent);
            }
            assert_eq!(kept, given);
        }
    }

    #[test]
    fn each_history_is_behind_all_sequences_of_those_before_it() {
        let last = |history: History| Sequence(history.next().map_or(u64::MAX, |next| next.floor().0 - 1));
        let mut history = History::default();
        while let Some(next) = history.next() {
            assert!(next.floor() > last(history) && next.floor().history() == next);
            assert_eq!(last(history).history(), history);
            assert!(last(history).ends_history() && !next.floor().ends_history());
            assert_eq!((next.floor().in_history(), next.floor().next().in_history()), (0, 1));
            history = next;
        }
        assert_eq!((history, last(history).history()), (History(u16::MAX), history));
        assert!(last(history).ends_history());
    }

    #[test]
    fn a_placement_group_reads_back_what_it_prints() {
        let pg = PgId { pool: PoolId(3), index: 65_535 };
        assert_eq!(pg.to_string().parse(), Ok(pg));
        assert!("3".parse::<PgId>().is_err());
    }
}
