//! Where OSDs stand, what drives they are, and what a pool asks of both.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

/// Where a host stands. What is not said is not known; a name counts within what is above it, so that the racks `r1` of
/// two zones are two.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default)]
pub struct Location {
    /// The region: what one disaster does not take whole with another.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// The zone: a building, or a fire compartment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// The rack: what shares a power feed and a switch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rack: Option<String>,
}

impl fmt::Display for Location {
    /// As a path, the largest first: `eu/a/r1`. What is not known is left out.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let levels = [&self.region, &self.zone, &self.rack];
        for (at, name) in levels.into_iter().flatten().enumerate() {
            write!(formatter, "{}{name}", if at > 0 { "/" } else { "" })?;
        }
        Ok(())
    }
}

/// A node as the cluster knows it, besides its OSDs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeInfo {
    /// The machine it runs on. Nodes of the same host fail together. Empty: a host of its own, named after the node.
    pub host: String,
    /// Where that machine stands.
    pub location: Location,
    /// Where its processes serve the registry to clients, if they do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_port: Option<SocketAddr>,
    /// The addresses of that machine at which all of its ports are, the one that is preferred first. Empty: the address that
    /// a port names is the only one.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<IpAddr>,
}

/// What kind of drive an OSD is on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceClass {
    /// Flash on PCI Express.
    Nvme,
    /// Other flash, and whatever cannot be told.
    #[default]
    Ssd,
    /// Turning platters.
    Hdd,
}

/// What shall not hold two replicas of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureDomain {
    /// One drive.
    Osd,
    /// One machine.
    #[default]
    Host,
    /// One rack.
    Rack,
    /// One zone.
    Zone,
    /// One region.
    Region,
}

/// A word that is none of those that are possible.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
#[error("{found:?} is no {what}; choose one of {choices}")]
pub struct UnknownWord {
    what: &'static str,
    found: String,
    choices: String,
}

macro_rules! words {
    ($name:ident, $what:literal, $($variant:ident = $word:literal),+) => {
        impl $name {
            /// All there are.
            pub const ALL: &[$name] = &[$($name::$variant),+];

            /// Its name.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $($name::$variant => $word),+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(self.name())
            }
        }

        impl FromStr for $name {
            type Err = UnknownWord;

            fn from_str(text: &str) -> Result<$name, UnknownWord> {
                let found = $name::ALL.iter().find(|one| one.name() == text);
                found.copied().ok_or_else(|| UnknownWord {
                    what: $what,
                    found: text.to_owned(),
                    choices: $name::ALL.iter().map(|one| one.name()).collect::<Vec<_>>().join(", "),
                })
            }
        }
    };
}

words!(DeviceClass, "device class", Nvme = "nvme", Ssd = "ssd", Hdd = "hdd");
words!(
    FailureDomain,
    "failure domain",
    Osd = "osd",
    Host = "host",
    Rack = "rack",
    Zone = "zone",
    Region = "region"
);

/// Where the replicas of a pool may lie.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlacementRule {
    /// Replicas of a group lie in distinct ones of these, if there are enough; else they are spread over them evenly.
    pub failure_domain: FailureDomain,
    /// Only OSDs on such drives hold replicas, if it is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_class: Option<DeviceClass>,
}

impl fmt::Display for PlacementRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.failure_domain)?;
        self.device_class.map_or(Ok(()), |class| write!(formatter, " on {class}"))
    }
}

/// A person's correction of how much data an OSD shall hold, on top of its size: from 0, nothing, to 1, its part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Reweight(u16);

/// Why a text is no reweight.
#[derive(thiserror::Error, Clone, Debug, PartialEq, Eq)]
#[error("{0:?} is no factor; write a number from 0 to 1 with at most three decimals, for example 0.8")]
pub struct ReweightError(String);

impl Reweight {
    /// As much as its size says.
    pub const FULL: Reweight = Reweight(1000);

    /// So many thousandths, or `None` if they are more than 1,000.
    #[must_use]
    pub fn from_thousandths(thousandths: u16) -> Option<Reweight> {
        (thousandths <= Reweight::FULL.0).then_some(Reweight(thousandths))
    }

    /// In thousandths.
    #[must_use]
    pub fn thousandths(self) -> u16 {
        self.0
    }

    /// That part of `bytes`, rounded down.
    #[must_use]
    pub fn of(self, bytes: u64) -> u64 {
        (u128::from(bytes) * u128::from(self.0) / u128::from(Reweight::FULL.0)) as u64
    }
}

impl Default for Reweight {
    fn default() -> Reweight {
        Reweight::FULL
    }
}

impl From<Reweight> for u16 {
    fn from(reweight: Reweight) -> u16 {
        reweight.0
    }
}

impl TryFrom<u16> for Reweight {
    type Error = ReweightError;

    fn try_from(thousandths: u16) -> Result<Reweight, ReweightError> {
        Reweight::from_thousandths(thousandths)
            .ok_or_else(|| ReweightError(format!("{thousandths} thousandths")))
    }
}

impl FromStr for Reweight {
    type Err = ReweightError;

    fn from_str(text: &str) -> Result<Reweight, ReweightError> {
        let wrong = || ReweightError(text.to_owned());
        let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
        let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
        if !matches!(whole, "0" | "1") || !is_number(decimals) || decimals.len() > 3 || text.ends_with('.') {
            return Err(wrong());
        }
        let thousandths: u16 = format!("{whole}{decimals:0<3}").parse().map_err(|_| wrong())?;
        Reweight::from_thousandths(thousandths).ok_or_else(wrong)
    }
}

impl fmt::Display for Reweight {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{}.{:03}", self.0 / 1000, self.0 % 1000);
        formatter.pad(digits.trim_end_matches('0').trim_end_matches('.'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reweight_reads_what_it_prints_and_nothing_beyond_one() {
        for thousandths in 0..=1000 {
            let reweight = Reweight::from_thousandths(thousandths).unwrap();
            assert_eq!(reweight.to_string().parse(), Ok(reweight));
        }
        assert_eq!("0.8".parse::<Reweight>().unwrap().of(1000), 800);
        assert_eq!(Reweight::FULL.of(u64::MAX), u64::MAX);
        assert_eq!(Reweight::FULL.to_string(), "1");
        for wrong in ["", "1.001", "2", "-1", "0.1234", ".5", "1.", "x", "0,5"] {
            assert!(wrong.parse::<Reweight>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn words_read_what_they_print_and_others_are_told_the_choices() {
        for &class in DeviceClass::ALL {
            assert_eq!(class.name().parse(), Ok(class));
        }
        for &domain in FailureDomain::ALL {
            assert_eq!(domain.name().parse(), Ok(domain));
        }
        let error = "shelf".parse::<FailureDomain>().unwrap_err().to_string();
        assert!(
            error.contains("\"shelf\" is no failure domain") && error.contains("osd, host, rack"),
            "{error}"
        );
    }

    #[test]
    fn a_location_prints_what_is_known() {
        let location = Location { region: Some("eu".into()), rack: Some("r1".into()), ..Location::default() };
        assert_eq!(location.to_string(), "eu/r1");
        assert_eq!(Location::default().to_string(), "");
    }
}
