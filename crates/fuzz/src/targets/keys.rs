//! The file of a secret key, as a user or somebody else wrote it.
//!
//! Bytes hardly ever are base64 between the right lines. So an input whose first byte says so is put there.

use super::SEALED;
use crate::outcomes::{Outcome, Outcomes};
use auth::SecretKey;
use base::PublicKey;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// What PKCS #8 (RFC 8410) puts before the 32 bytes of an Ed25519 key.
const PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];

pub(super) fn run(input: &[u8], seen: &mut Outcomes) {
    let Some((choice, bytes)) = input.split_first() else { return };
    let (text, which) = match choice & SEALED {
        0 => (bytes.to_vec(), "text"),
        _ => (in_pem(bytes), "bytes"),
    };
    match SecretKey::from_pem(&text) {
        Ok(key) => {
            let public = key.public();
            assert_eq!(public.to_string().parse::<PublicKey>(), Ok(public));
            assert!(!format!("{key:?}").is_empty());
            seen.note("key", which);
        }
        Err(reason) => {
            assert!(!reason.is_empty());
            seen.note("refused", which);
        }
    }
}

fn in_pem(bytes: &[u8]) -> Vec<u8> {
    let encoded = STANDARD.encode(bytes);
    format!("A key.\n-----BEGIN PRIVATE KEY-----\n{encoded}\n-----END PRIVATE KEY-----\n").into_bytes()
}

pub(super) fn examples() -> Vec<Vec<u8>> {
    let key = [&PREFIX[..], &[7; 32]].concat();
    // With the public half behind it (RFC 5958), which this one is not of.
    let mut second = [&PREFIX[..], &[8; 32], &[0x81, 0x21, 0x00], &[9; 32]].concat();
    (second[1], second[4]) = (0x51, 1);
    vec![
        [&[SEALED][..], &key].concat(),
        [&[SEALED][..], &second].concat(),
        [&[0][..], &in_pem(&key)].concat(),
        [&[0][..], &in_pem(&second)].concat(),
    ]
}

pub(super) fn expected() -> Vec<Outcome> {
    vec![("key", "bytes"), ("key", "text"), ("refused", "bytes"), ("refused", "text")]
}
