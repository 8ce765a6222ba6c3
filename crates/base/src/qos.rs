//! What a volume has of OSDs where several want more than these do.

use crate::limits::{Limit, Limits};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// How much a volume has, against others, of what is not reserved: one of twice the weight has twice as much.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub struct Weight(u32);

impl Weight {
    /// The least and the most that can be set.
    const BOUNDS: (u32, u32) = (1, 10_000);

    /// It, as a number from 1 to 10,000.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }
}

impl Default for Weight {
    fn default() -> Weight {
        Weight(100)
    }
}

impl TryFrom<u32> for Weight {
    type Error = String;
    fn try_from(number: u32) -> Result<Weight, String> {
        let (least, most) = Weight::BOUNDS;
        match (least..=most).contains(&number) {
            true => Ok(Weight(number)),
            false => {
                Err(format!("{number} is no weight; one is from {least} to {most}, and 100 unless it is set"))
            }
        }
    }
}

impl From<Weight> for u32 {
    fn from(weight: Weight) -> u32 {
        weight.0
    }
}

impl FromStr for Weight {
    type Err = String;
    fn from_str(text: &str) -> Result<Weight, String> {
        let number = text.parse::<u32>().map_err(|_| format!("{text:?} is no weight; one is like 200"))?;
        Weight::try_from(number)
    }
}

/// What a volume has of OSDs where several want more than these do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Qos {
    /// Operations a second that begin before whatever has no reservation, at all OSDs together; 0 of one that has none. One of more
    /// than 4 KiB counts for more: for a fifth more with each further 4 KiB.
    pub reservation: u32,
    /// How much it has of the rest.
    pub weight: Weight,
}

impl Qos {
    /// Whether nothing is set.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Qos::default()
    }

    /// Refuses a reservation that limits of the same volume keep it from ever using.
    ///
    /// # Errors
    /// In words, with the limits.
    pub fn fits(&self, limits: &Limits) -> Result<(), String> {
        let rate = |limit: Option<Limit>| limit.map_or(u64::MAX, |limit| limit.per_second);
        let each = rate(limits.read_iops).saturating_add(rate(limits.write_iops));
        let most = rate(limits.iops).min(each);
        match u64::from(self.reservation) <= most {
            true => Ok(()),
            false => Err(format!(
                "{} operations a second are reserved for it, and its limits are {limits}: it would never have more than {most}",
                self.reservation
            )),
        }
    }
}

impl fmt::Display for Qos {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.reservation {
            0 => formatter.write_str("nothing reserved")?,
            reservation => write!(formatter, "{reservation} operations a second reserved")?,
        }
        write!(formatter, ", weight {}", self.weight.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_weight_is_within_bounds_and_a_volume_without_one_has_the_middle() {
        assert_eq!("200".parse::<Weight>().map(Weight::number), Ok(200));
        for text in ["0", "10001", "-1", "much", "", "1.5"] {
            let error = text.parse::<Weight>().expect_err(text);
            assert!(error.contains("is no weight; one is"), "{error}");
        }
        assert!(serde_json::from_str::<Qos>(r#"{"weight":0}"#).is_err());
        let qos = serde_json::from_str::<Qos>(r#"{"reservation":5}"#).expect("the rest is as if it were set");
        assert_eq!(qos.to_string(), "5 operations a second reserved, weight 100");
        assert!(Qos::default().is_default() && !qos.is_default());
    }

    #[test]
    fn a_reservation_fits_limits_that_let_so_much_through() {
        let limit = |per_second| Some(Limit { per_second, burst: 0 });
        let fits = |reservation, limits: Limits| Qos { reservation, ..Qos::default() }.fits(&limits).is_ok();
        assert!(fits(u32::MAX, Limits::default()));
        let all = Limits { iops: limit(500), ..Limits::default() };
        assert!(fits(500, all) && !fits(501, all) && fits(0, all));
        let reads = Limits { read_iops: limit(200), ..Limits::default() };
        assert!(fits(5000, reads), "the rest may be writes");
        let each = Limits { write_iops: limit(100), ..reads };
        assert!(fits(300, each) && !fits(301, each));
        let error = Qos { reservation: 301, ..Qos::default() }.fits(&each).expect_err("it is too much");
        assert!(error.contains("301 operations") && error.contains("more than 300"), "{error}");
    }
}
