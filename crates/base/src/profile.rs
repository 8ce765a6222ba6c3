//! How what OSDs do is divided between clients and the work that nobody waits for.

use crate::recovery::RecoveryShare;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Work of OSDs that no client waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkClass {
    /// Bringing members up to date, and filling OSDs.
    Recovery,
    /// Comparing members, and what is on drives with what was written.
    Scrub,
    /// What nobody sees any more of volumes going, as when a snapshot is removed or a volume shrinks; and clones being flattened.
    Removal,
    /// Volumes, pools and groups that are gone being deleted.
    Deletion,
}

impl WorkClass {
    /// All of them, in the order in which they are shown.
    pub const ALL: [WorkClass; 4] =
        [WorkClass::Recovery, WorkClass::Scrub, WorkClass::Removal, WorkClass::Deletion];
}

impl fmt::Display for WorkClass {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            WorkClass::Recovery => "recovery",
            WorkClass::Scrub => "scrub",
            WorkClass::Removal => "removal",
            WorkClass::Deletion => "deletion",
        })
    }
}

/// Whom OSDs favour, of clients and the classes of work. Each class has a share of what an OSD does while that serves clients, and none
/// goes by its share where nobody is served.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Profile {
    /// A tenth for each class.
    #[default]
    Balanced,
    /// As little as keeps each class from standing still.
    Clients,
    /// Half of all is recovery.
    Recovery,
    /// Scrubs, removals and deletions have as much as recovery has otherwise, and twice that.
    Background,
}

impl Profile {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Profile; 4] =
        [Profile::Balanced, Profile::Clients, Profile::Recovery, Profile::Background];

    /// The share of a class, unless something else is set for it.
    #[must_use]
    pub fn share(self, class: WorkClass) -> RecoveryShare {
        let percent = match (self, class) {
            (Profile::Balanced, _) | (Profile::Background, WorkClass::Recovery) => 10,
            (Profile::Clients, _) => 3,
            (Profile::Recovery, WorkClass::Recovery) => 50,
            (Profile::Recovery, _) => 5,
            (Profile::Background, _) => 20,
        };
        RecoveryShare::try_from(percent).expect("all of them are shares")
    }
}

impl fmt::Display for Profile {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Profile::Balanced => "balanced",
            Profile::Clients => "clients",
            Profile::Recovery => "recovery",
            Profile::Background => "background",
        })
    }
}

impl FromStr for Profile {
    type Err = String;
    fn from_str(text: &str) -> Result<Profile, String> {
        let named = Profile::ALL.into_iter().find(|profile| profile.to_string() == text);
        named.ok_or_else(|| {
            format!("{text:?} is no profile; there are balanced, clients, recovery and background")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_is_read_as_it_is_shown_and_leaves_clients_a_quarter_at_least() {
        for profile in Profile::ALL {
            assert_eq!(profile.to_string().parse(), Ok(profile));
            let work: u32 = WorkClass::ALL.map(|class| profile.share(class).percent()).iter().sum();
            assert!(work <= 75, "{profile}: {work}");
        }
        let error = "fast".parse::<Profile>().expect_err("there is none of that name");
        assert!(error.contains("balanced, clients, recovery and background"), "{error}");
    }

    #[test]
    fn whoever_sets_nothing_has_the_share_of_recovery_that_there_was_before_profiles() {
        assert_eq!(Profile::default().share(WorkClass::Recovery), RecoveryShare::default());
    }
}
