//! Greetings: what whoever connects says first, and what it is answered.
//!
//! Both ends find a version that they speak here, so these messages are read by programs that know nothing of each
//! other's. What a hello has in its 64 bytes of body is said in all versions at the same place; a later version may say
//! more in the bytes that are reserved.

use crate::fields::{At, Impossible, fields, sealed};
use crate::frame::{Frame, Stop, WireError};
use crate::header::Kind;
use crate::version::{VERSIONS, Version, Versions};
use base::{ClientId, ClusterId, OsdId};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

const MAGIC: [u8; 8] = *b"MILLPOND";
/// The most bytes of a refusal's reason.
const REASON_BYTES_MAX: usize = 512;

/// The body of a hello.
#[repr(C)]
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
struct HelloBody {
    magic: [u8; 8],
    newest_version: U16,
    /// 1 a client, 2 an OSD.
    role: U16,
    target: U32,
    cluster: [u8; 16],
    /// The client's or the OSD's id.
    sender: U64,
    /// 0 if it is the newest too.
    oldest_version: U16,
    /// Not looked at, unlike other reserved bytes: which version is spoken is not settled yet.
    reserved_42: [u8; 22],
}
const _: () = assert!(size_of::<HelloBody>() == 64);

/// Who opens a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// A client that reads and writes volumes.
    Client(ClientId),
    /// Another OSD of the cluster.
    Osd(OsdId),
}

/// The first message: who I am, and whom I mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Who speaks.
    pub role: Role,
    /// The cluster the speaker belongs to.
    pub cluster: ClusterId,
    /// The OSD it wants to reach.
    pub target: OsdId,
    /// What it speaks: [`VERSIONS`], or of another program versions of which one at least is among those.
    pub versions: Versions,
}

impl Hello {
    pub(crate) fn parse(frame: &Frame<'_>) -> Result<Hello, Stop> {
        frame.fields::<()>()?;
        let body: &HelloBody = frame.body_as()?;
        if body.magic != MAGIC {
            return Err(WireError::NotMillpond.into());
        }
        let newest = Version(body.newest_version.get());
        let oldest = match body.oldest_version.get() {
            0 => newest,
            oldest => Version(oldest),
        };
        let versions = Versions::new(oldest, newest)
            .ok_or_else(|| frame.wrong(Impossible("oldest version", oldest.0.into())))?;
        if versions.common(VERSIONS).is_none() {
            return Err(WireError::Version { theirs: versions }.into());
        }
        let sender = body.sender.get();
        let role = match body.role.get() {
            1 => Role::Client(ClientId(sender)),
            2 => Role::Osd(OsdId(
                u32::try_from(sender).map_err(|_| frame.wrong(Impossible("sender", sender)))?,
            )),
            other => return Err(frame.wrong(Impossible("role", other.into()))),
        };
        let cluster = ClusterId::from_bytes(body.cluster);
        Ok(Hello { role, cluster, target: OsdId(body.target.get()), versions })
    }

    /// The newest version that the speaker and this program speak.
    ///
    /// # Panics
    /// If there is none: then it was not parsed.
    #[must_use]
    pub fn version(&self) -> Version {
        self.versions.common(VERSIONS).expect("a hello without a common version is refused when it is parsed")
    }

    /// The whole message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (role, sender) = match self.role {
            Role::Client(id) => (1u16, id.0),
            Role::Osd(id) => (2, u64::from(id.0)),
        };
        let (oldest, newest) = (self.versions.oldest.0, self.versions.newest.0);
        let body = HelloBody {
            magic: MAGIC,
            newest_version: newest.into(),
            role: role.into(),
            target: self.target.0.into(),
            cluster: self.cluster.to_bytes(),
            sender: sender.into(),
            oldest_version: if oldest == newest { 0 } else { oldest }.into(),
            reserved_42: [0; 22],
        };
        [&sealed(Kind::Hello, size_of::<HelloBody>(), &())[..], body.as_bytes()].concat()
    }
}

fields! {
    /// The answer to a hello that was accepted.
    Welcome is all of Kind::Welcome, checked by Welcome::check {
        /// Which version is spoken on this connection, of those that the hello named.
        version: Version = At<12>,
    }
}

impl Welcome {
    fn check(&self, _: Kind) -> Result<(), Impossible> {
        match VERSIONS.contains(self.version) {
            true => Ok(()),
            false => Err(Impossible("version", self.version.0.into())),
        }
    }
}

/// The answer to anything that ends the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused<'a> {
    /// Why, for people. At most 512 bytes of it are sent.
    pub reason: &'a str,
}

impl<'a> Refused<'a> {
    pub(crate) fn parse(frame: &Frame<'a>) -> Result<Refused<'a>, Stop> {
        frame.fields::<()>()?;
        let body = frame.body(frame.body_bytes <= REASON_BYTES_MAX)?;
        Ok(Refused { reason: std::str::from_utf8(body).unwrap_or("(unreadable reason)") })
    }

    /// The whole message.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let reason = &self.reason[..self.reason.floor_char_boundary(REASON_BYTES_MAX)];
        [&sealed(Kind::Refused, reason.len(), &())[..], reason.as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{HEADER_BYTES, Message, parse};

    fn hello() -> Hello {
        let cluster = ClusterId::from_bytes([7; 16]);
        Hello { role: Role::Osd(OsdId(1)), cluster, target: OsdId(2), versions: VERSIONS }
    }

    /// What becomes of a hello of somebody who speaks these versions.
    fn greeted(oldest: u16, newest: u16) -> Result<Hello, WireError> {
        let mut bytes = hello().encode();
        bytes[HEADER_BYTES + 8..][..2].copy_from_slice(&newest.to_le_bytes());
        bytes[HEADER_BYTES + 40..][..2].copy_from_slice(&oldest.to_le_bytes());
        match parse(&bytes)? {
            Some((Message::Hello(hello), 128)) => Ok(hello),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_hello_chooses_the_newest_version_of_both() {
        let chosen = |oldest, newest| greeted(oldest, newest).map(|hello| hello.version());
        assert_eq!(chosen(0, 4), Ok(Version(4)), "it names one alone");
        assert_eq!(chosen(4, 4), Ok(Version(4)));
        assert_eq!(chosen(1, 4), Ok(Version(4)));
        assert_eq!(chosen(4, 5), Ok(Version(5)));
        assert_eq!(chosen(5, 5), Ok(Version(5)));
        assert_eq!(chosen(5, 9), Ok(Version(6)), "it may be newer, and say more than this program knows");
    }

    #[test]
    fn who_speaks_no_version_of_ours_is_refused_with_both_ranges_and_what_to_do() {
        let error = |oldest, newest| greeted(oldest, newest).unwrap_err().to_string();
        let expected =
            "the peer speaks protocol version 7 to 9, this is version 4 to 6; upgrade the older of the two";
        assert_eq!(error(7, 9), expected);
        assert!(error(1, 3).contains("version 1 to 3"));
        assert!(error(0, 3).contains("version 3,"), "it names one alone");
        assert!(error(0, 0).contains("version 0,"));
    }

    #[test]
    fn an_inverted_range_of_versions_is_refused() {
        let inverted = |oldest, newest| {
            let value = u64::from(oldest);
            let expected = WireError::Field { kind: Kind::Hello, field: "oldest version", value };
            assert_eq!(greeted(oldest, newest), Err(expected));
        };
        inverted(4, 3);
        inverted(3, 2);
        inverted(u16::MAX, 3);
    }

    #[test]
    fn who_does_not_greet_as_millpond_does_is_told_apart_from_another_version() {
        let mut bytes = hello().encode();
        bytes[HEADER_BYTES] = b'X';
        assert_eq!(parse(&bytes), Err(WireError::NotMillpond));
    }

    #[test]
    fn what_a_later_version_adds_to_a_hello_does_not_keep_it_out() {
        let mut bytes = hello().encode();
        bytes[HEADER_BYTES + 42..].fill(0xff);
        assert_eq!(parse(&bytes), Ok(Some((Message::Hello(hello()), 128))));
    }

    #[test]
    fn a_version_that_was_not_offered_is_not_taken() {
        for version in [2, 3, 7, u16::MAX] {
            let bytes = Welcome { version: Version(version) }.encode();
            let value = u64::from(version);
            assert_eq!(parse(&bytes), Err(WireError::Field { kind: Kind::Welcome, field: "version", value }));
        }
    }

    #[test]
    fn a_reason_that_is_too_long_is_cut_between_two_characters() {
        let reason = format!("x{}", "ü".repeat(300));
        let bytes = Refused { reason: &reason }.encode();
        let Ok(Some((Message::Refused(refused), _))) = parse(&bytes) else { panic!() };
        assert_eq!(refused.reason, &reason[..511]);
    }
}
