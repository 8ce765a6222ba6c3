//! Versions of the protocol, and which of them two programs speak with each other.

use std::fmt;

/// A version of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u16);

impl Version {
    /// The one that is spoken by those who know of no other.
    pub(crate) const FIRST: Version = Version(3);
}

/// What this program speaks. Version 4 knows no layers: snapshots are made where all OSDs that are up do. Version 5 knows no limits.
pub const VERSIONS: Versions = Versions { oldest: Version(4), newest: KNOWS_LIMITS };

/// Whoever speaks this one or a newer one knows of limits.
pub const KNOWS_LIMITS: Version = Version(6);

/// All versions from one to another, which is not older.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    pub(crate) oldest: Version,
    pub(crate) newest: Version,
}

impl Versions {
    /// `None` if the oldest is newer than the newest.
    #[must_use]
    pub fn new(oldest: Version, newest: Version) -> Option<Versions> {
        (oldest <= newest).then_some(Versions { oldest, newest })
    }

    /// Whether that one is among them.
    #[must_use]
    pub fn contains(self, version: Version) -> bool {
        (self.oldest..=self.newest).contains(&version)
    }

    /// The newest version that both speak, if there is one.
    #[must_use]
    pub fn common(self, other: Versions) -> Option<Version> {
        let newest = self.newest.min(other.newest);
        (newest >= self.oldest.max(other.oldest)).then_some(newest)
    }
}

impl fmt::Display for Versions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.oldest == self.newest {
            true => write!(formatter, "{}", self.newest.0),
            false => write!(formatter, "{} to {}", self.oldest.0, self.newest.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_programs_speak_the_newest_version_that_both_know() {
        let versions = |oldest, newest| Versions::new(Version(oldest), Version(newest)).unwrap();
        let common = |one: Versions, other: Versions| {
            let version = one.common(other).map(|version| version.0);
            assert_eq!(other.common(one).map(|version| version.0), version, "whoever asks");
            version
        };
        assert_eq!(common(versions(3, 3), versions(3, 3)), Some(3));
        assert_eq!(common(versions(3, 5), versions(4, 7)), Some(5));
        assert_eq!(common(versions(3, 5), versions(5, 7)), Some(5));
        assert_eq!(common(versions(1, 9), versions(4, 6)), Some(6));
        assert_eq!(common(versions(3, 4), versions(5, 6)), None);
    }

    #[test]
    fn an_inverted_range_is_none() {
        assert_eq!(Versions::new(Version(4), Version(3)), None);
    }
}
