//! Sizes as people write them: `8GiB`, `4MiB`, `512`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// A number of bytes. Reads and prints binary units; a bare number is bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ByteSize(pub u64);

/// Why a text is no size.
#[derive(thiserror::Error, Debug, PartialEq, Eq)]
pub enum ByteSizeError {
    /// No such unit, or no number.
    #[error("{0:?} is not a size; write a number and a unit, for example 512KiB, 4MiB, 8GiB or 2TiB")]
    Malformed(String),
    /// More than 64 bits hold.
    #[error("{0:?} is larger than any size that fits in 64 bits")]
    TooLarge(String),
}

const UNITS: [(&str, u32); 6] =
    [("EiB", 60), ("PiB", 50), ("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    /// Accepts `4MiB`, `4M`, `4 mib` (all binary, as fio and QEMU take them), `4096` and `1.5GiB`.
    fn from_str(text: &str) -> Result<ByteSize, ByteSizeError> {
        let malformed = || ByteSizeError::Malformed(text.to_owned());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = (&trimmed[..split], trimmed[split..].trim().to_ascii_lowercase());
        let shift = match unit.as_str() {
            "" | "b" => 0,
            "k" | "kib" => 10,
            "m" | "mib" => 20,
            "g" | "gib" => 30,
            "t" | "tib" => 40,
            "p" | "pib" => 50,
            "e" | "eib" => 60,
            _ => return Err(malformed()),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() || fraction.len() > 9 || fraction.contains('.') {
            return Err(malformed());
        }
        let too_large = || ByteSizeError::TooLarge(text.to_owned());
        let scale = 10u128.pow(fraction.len() as u32);
        let digits: u128 = format!("{whole}{fraction}").parse().map_err(|_| too_large())?;
        let bytes = digits.checked_mul(1 << shift).ok_or_else(too_large)? / scale;
        u64::try_from(bytes).map(ByteSize).map_err(|_| too_large())
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in UNITS {
            if self.0 >> shift != 0 {
                let scaled = self.0 as f64 / (1u64 << shift) as f64;
                return if self.0.trailing_zeros() >= shift {
                    formatter.pad(&format!("{}{unit}", self.0 >> shift))
                } else {
                    formatter.pad(&format!("{scaled:.1}{unit}"))
                };
            }
        }
        formatter.pad(&format!("{}B", self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_people_write_them() {
        assert_eq!("8GiB".parse(), Ok(ByteSize(8 << 30)));
        assert_eq!("4m".parse(), Ok(ByteSize(4 << 20)));
        assert_eq!("1.5 KiB".parse(), Ok(ByteSize(1536)));
        assert_eq!("512".parse(), Ok(ByteSize(512)));
        assert_eq!("16EiB".parse::<ByteSize>(), Err(ByteSizeError::TooLarge("16EiB".into())));
        for wrong in ["", "GiB", "8 GB8", "-1", "1.2.3G", "8 parsecs", "."] {
            assert!(matches!(wrong.parse::<ByteSize>(), Err(ByteSizeError::Malformed(_))), "{wrong}");
        }
    }

    #[test]
    fn sizes_print_in_the_largest_unit() {
        assert_eq!(ByteSize(8 << 30).to_string(), "8GiB");
        assert_eq!(ByteSize(1536).to_string(), "1.5KiB");
        assert_eq!(ByteSize(100).to_string(), "100B");
    }
}
