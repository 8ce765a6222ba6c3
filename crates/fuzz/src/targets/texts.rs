//! What users write on command lines and in settings. It is refused, or what it is taken for reads back as it is shown.

use super::choices::{self, Choice};
use crate::outcomes::{Outcome, Outcomes};
use base::duration::Limit;
use base::map::{DeviceClass, FailureDomain, Reweight};
use base::units::ByteSize;
use base::{Encryption, PgId, PublicKey};
use doors::nbd::NbdUri;
use registry::Endpoints;
use std::fmt::Display;
use std::str::FromStr;

/// By the first byte of an input: what the rest is taken for, and an example.
const KINDS: [Choice; 10] = [
    (
        "public key",
        reads_back::<PublicKey>,
        "ed25519:0011223344556677001122334455667700112233445566770011223344556677",
    ),
    ("placement group", reads_back::<PgId>, "1.17"),
    (
        "endpoints",
        reads_back::<Endpoints>,
        "millpond://ed25519:0011223344556677001122334455667700112233445566770011223344556677@10.0.0.1:6480,\
         ed25519:0011223344556677001122334455667700112233445566770011223344556677@[fe80::1]:6480",
    ),
    ("NBD URI", reads_back::<NbdUri>, "nbd://[::1]:10809/a%20volume"),
    ("NBD socket", reads_back::<NbdUri>, "nbd+unix:///a%2Fb?socket=/run/millpond.sock"),
    ("limit", reads_back::<Limit>, "10min"),
    ("encryption", reads_back::<Encryption>, "off"),
    ("reweight", reads_back::<Reweight>, "0.875"),
    ("word", |bytes| reads_back::<DeviceClass>(bytes) || reads_back::<FailureDomain>(bytes), "rack"),
    ("size", |bytes| String::from_utf8_lossy(bytes).parse::<ByteSize>().is_ok(), "1.5GiB"),
];

/// Whether a text is taken for something.
///
/// # Panics
/// If that is shown as something else.
pub fn reads_back<T: FromStr + Display + PartialEq>(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let Ok(value) = text.parse::<T>() else { return false };
    let shown = value.to_string();
    assert!(shown.parse::<T>().is_ok_and(|again| again == value), "{text:?} is shown as {shown:?}");
    true
}

pub(super) fn run(input: &[u8], seen: &mut Outcomes) {
    choices::run(&KINDS, input, seen);
}

pub(super) fn examples() -> Vec<Vec<u8>> {
    choices::examples(&KINDS)
}

pub(super) fn expected() -> Vec<Outcome> {
    choices::expected(&KINDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_is_read() {
        choices::assert_every_example_is_read(&KINDS);
    }
}
