//! How much clients may do with a volume, or under a key, in a second.

use crate::ids::VolumeId;
use crate::units::ByteSize;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The largest rate, and the largest burst: what no cluster reaches.
const MOST: u64 = 1 << 50;

/// A limit of something that is counted: operations, or bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// So much a second, as long as it goes on; at least 1.
    pub per_second: u64,
    /// So much at once after a pause that was long enough to save it up. 0: as much as a tenth of a second brings.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub burst: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Limit {
    /// A limit.
    ///
    /// # Errors
    /// In words: of a rate of 0, with which nothing would be done at all, and of one that is beyond what can be counted.
    pub fn new(per_second: u64, burst: u64) -> Result<Limit, String> {
        match (per_second, burst) {
            (0, _) => {
                Err("a limit of 0 would have all operations wait for ever; say none to take a limit off"
                    .to_owned())
            }
            (1..=MOST, 0..=MOST) => Ok(Limit { per_second, burst }),
            _ => Err(format!("a limit and its burst are {MOST} at most")),
        }
    }

    /// How much may be saved up.
    #[must_use]
    pub fn depth(&self) -> u64 {
        self.burst.max(self.per_second / 10).max(1)
    }

    /// The limit of a text like `5000` or `5000:20000`, or none.
    ///
    /// # Errors
    /// In words.
    fn parse(text: &str, number: impl Fn(&str) -> Result<u64, String>) -> Result<Option<Limit>, String> {
        if text == "none" {
            return Ok(None);
        }
        let (rate, burst) = text.split_once(':').map_or((text, None), |(rate, burst)| (rate, Some(burst)));
        let burst = burst.map_or(Ok(0), &number)?;
        Limit::new(number(rate)?, burst).map(Some)
    }

    /// The text of a limit, or of none, as it is parsed.
    fn show<T: fmt::Display>(
        limit: Option<Limit>,
        number: impl Fn(u64) -> T,
        formatter: &mut fmt::Formatter<'_>,
    ) -> fmt::Result {
        match limit {
            None => formatter.write_str("none"),
            Some(Limit { per_second, burst: 0 }) => write!(formatter, "{}", number(per_second)),
            Some(Limit { per_second, burst }) => {
                write!(formatter, "{}:{}", number(per_second), number(burst))
            }
        }
    }
}

/// A limit of operations as people write it: `5000` a second, `5000:20000` with so many at once after a pause, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationsLimit(pub Option<Limit>);

impl FromStr for OperationsLimit {
    type Err = String;
    fn from_str(text: &str) -> Result<OperationsLimit, String> {
        let number = |part: &str| {
            part.parse().map_err(|_| {
                format!("{text:?} is no limit of operations; write 5000, or 5000:20000 with a burst, or none")
            })
        };
        Limit::parse(text, number).map(OperationsLimit)
    }
}

impl fmt::Display for OperationsLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Limit::show(self.0, |operations| operations, formatter)
    }
}

/// A limit of bytes as people write it: `100MiB` a second, `100MiB:2GiB` with so much at once after a pause, or `none`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytesLimit(pub Option<Limit>);

impl FromStr for BytesLimit {
    type Err = String;
    fn from_str(text: &str) -> Result<BytesLimit, String> {
        let number = |part: &str| {
            part.parse().map(|ByteSize(bytes)| bytes).map_err(|error| {
                format!("{error}; a limit of bytes is like 100MiB, or 100MiB:2GiB with a burst, or none")
            })
        };
        Limit::parse(text, number).map(BytesLimit)
    }
}

impl fmt::Display for BytesLimit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        Limit::show(self.0, ByteSize, formatter)
    }
}

/// Limits of a volume, or of a key. Whatever has several keeps all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Operations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iops: Option<Limit>,
    /// Reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_iops: Option<Limit>,
    /// Writes, zeroings and trims.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_iops: Option<Limit>,
    /// Bytes that are read or written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Limit>,
    /// Bytes that are read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_bandwidth: Option<Limit>,
    /// Bytes that are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_bandwidth: Option<Limit>,
}

impl Limits {
    /// Whether there are none.
    #[must_use]
    pub fn is_none(&self) -> bool {
        *self == Limits::default()
    }

    /// All of them with their names, in the order in which they are shown.
    #[must_use]
    pub fn named(&self) -> [(&'static str, Option<Limit>, bool); 6] {
        [
            ("iops", self.iops, false),
            ("read-iops", self.read_iops, false),
            ("write-iops", self.write_iops, false),
            ("bandwidth", self.bandwidth, true),
            ("read-bandwidth", self.read_bandwidth, true),
            ("write-bandwidth", self.write_bandwidth, true),
        ]
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = self.named().into_iter().filter(|(_, limit, _)| limit.is_some());
        let told = told.map(|(name, limit, is_bytes)| match is_bytes {
            true => format!("{name} {}", BytesLimit(limit)),
            false => format!("{name} {}", OperationsLimit(limit)),
        });
        match told.collect::<Vec<_>>() {
            told if told.is_empty() => formatter.write_str("none"),
            told => formatter.write_str(&told.join(", ")),
        }
    }
}

/// What limits are of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Limited {
    /// A volume, whoever uses it.
    Volume(VolumeId),
    /// A key, whatever it is used for: by the first 8 bytes of its public half.
    Key(u64),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_as_they_are_shown() {
        for text in ["5000", "5000:20000", "1", "none"] {
            assert_eq!(text.parse::<OperationsLimit>().map(|limit| limit.to_string()), Ok(text.to_owned()));
        }
        for text in ["100MiB", "100MiB:2GiB", "none"] {
            assert_eq!(text.parse::<BytesLimit>().map(|limit| limit.to_string()), Ok(text.to_owned()));
        }
        for text in ["", "fast", "-1", "5000:", ":5", "5k"] {
            let error = text.parse::<OperationsLimit>().expect_err(text);
            assert!(error.contains("write 5000"), "{error}");
            assert!(text == "5k" || text.parse::<BytesLimit>().is_err());
        }
        for text in ["0", "0:5"] {
            let error = text.parse::<OperationsLimit>().expect_err(text);
            assert!(error.contains("say none"), "{error}");
        }
        assert!(format!("{}", u64::MAX).parse::<BytesLimit>().is_err());
    }

    #[test]
    fn what_may_be_saved_up_is_the_burst_or_a_tenth_of_a_second() {
        let depth = |per_second, burst| Limit { per_second, burst }.depth();
        assert_eq!([depth(5000, 0), depth(5000, 100), depth(5000, 9000), depth(3, 0)], [500, 500, 9000, 1]);
    }

    #[test]
    fn those_that_are_set_are_told() {
        let limits = Limits {
            iops: Some(Limit { per_second: 5000, burst: 0 }),
            write_bandwidth: Some(Limit { per_second: 1 << 20, burst: 1 << 30 }),
            ..Limits::default()
        };
        assert_eq!(limits.to_string(), "iops 5000, write-bandwidth 1MiB:1GiB");
        assert_eq!(Limits::default().to_string(), "none");
        assert!(Limits::default().is_none() && !limits.is_none());
    }
}
