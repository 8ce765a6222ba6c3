//! What users write on command lines and in settings. It is refused, or what it is taken for reads back as it is shown.

use crate::outcomes::{Outcome, Outcomes};
use base::duration::Limit;
use base::map::{DeviceClass, FailureDomain, Reweight};
use base::units::ByteSize;
use base::{Encryption, PgId, PublicKey};
use doors::nbd::NbdUri;
use registry::Endpoints;
use std::fmt::Display;
use std::str::FromStr;

/// Takes a text for something, if it is one.
type Read = fn(&str) -> bool;

/// By the first byte of an input: what the rest is taken for, and an example.
const KINDS: [(&str, Read, &str); 10] = [
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
    ("word", |text| reads_back::<DeviceClass>(text) || reads_back::<FailureDomain>(text), "rack"),
    ("size", |text| text.parse::<ByteSize>().is_ok(), "1.5GiB"),
];

fn reads_back<T: FromStr + Display + PartialEq>(text: &str) -> bool {
    let Ok(value) = text.parse::<T>() else { return false };
    let shown = value.to_string();
    assert!(shown.parse::<T>().is_ok_and(|again| again == value), "{text:?} is shown as {shown:?}");
    true
}

pub(super) fn run(input: &[u8], seen: &mut Outcomes) {
    let Some((choice, bytes)) = input.split_first() else { return };
    let (name, read, _) = KINDS[usize::from(*choice) % KINDS.len()];
    seen.note(name, if read(&String::from_utf8_lossy(bytes)) { "read" } else { "refused" });
}

pub(super) fn examples() -> Vec<Vec<u8>> {
    let with_number = (0..).zip(KINDS);
    with_number.map(|(number, (.., example))| [&[number][..], example.as_bytes()].concat()).collect()
}

pub(super) fn expected() -> Vec<Outcome> {
    KINDS.iter().flat_map(|(name, ..)| [(*name, "read"), (*name, "refused")]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_is_read() {
        for (name, read, example) in KINDS {
            assert!(read(example), "{name}: {example}");
        }
    }
}
