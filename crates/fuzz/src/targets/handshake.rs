//! Both ends of a handshake, and of the encryption behind it, while somebody on the way changes what they say; or one of them
//! says under its keys what no honest one says. What is heard is what was said, or nothing.
//!
//! The input is a script: what the ends want, what is changed where, and what is said behind the handshake. Keys are drawn
//! anew in each handshake, so bytes that were sealed are others in each run.

use super::Script;
use crate::outcomes::{Outcome, Outcomes};
use auth::{AuthError, Identity, SecretKey};
use base::{Encryption, PublicKey};
use sim::random::Random;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::sync::LazyLock;
use std::task::{Context, Poll, Waker};
use tls::Session;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Bits of an input's first byte: what the ends want, that another key is expected, that who connects is refused.
const NEAR_ENCRYPTS: u8 = 1;
const FAR_ENCRYPTS: u8 = 2;
const OTHER_KEY: u8 = 4;
const REFUSES: u8 = 8;
/// Where the number of changes begins in an input's first byte.
const CHANGES_SHIFT: u8 = 5;
/// A handshake takes no more turns of its ends.
const TURNS_MAX: usize = 32;
/// The most steps behind a handshake.
const STEPS_MAX: usize = 40;
/// Kinds of records (RFC 8446, section 5.1).
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
/// A message of the handshake by which either end has the other take another key (RFC 8446, section 4.6.3).
const KEY_UPDATE_REQUESTED: [u8; 5] = [24, 0, 0, 1, 1];
/// What is read at once.
const ROOM_BYTES: usize = 300;

/// Two ends, and one that neither knows.
static IDENTITIES: LazyLock<[Identity; 3]> = LazyLock::new(|| {
    [(); 3].map(|()| Identity::new(&SecretKey::generate().expect("there are random numbers")))
});

/// What is done to a byte on its way.
#[derive(Clone, Copy)]
struct Change {
    at: usize,
    how: u8,
    value: u8,
}

/// One direction of a connection.
#[derive(Default)]
struct Way {
    bytes: VecDeque<u8>,
    /// Bytes that were said.
    said: usize,
    changes: Vec<Change>,
    is_closed: bool,
}

impl Way {
    fn carry(&mut self, bytes: &[u8]) {
        for byte in bytes {
            let change = self.changes.iter().find(|change| change.at == self.said).copied();
            self.said += 1;
            if self.is_closed {
                continue;
            }
            match change {
                None => self.bytes.push_back(*byte),
                Some(Change { how, value, .. }) => match how % 8 {
                    0 | 1 => self.bytes.push_back(byte ^ value),
                    2 => {}
                    3 => self.bytes.extend([value, *byte]),
                    4 => self.bytes.extend([*byte, *byte]),
                    5 => self.bytes.push_back(value),
                    6 => self.bytes.push_back(byte.wrapping_add(1)),
                    _ => self.is_closed = true,
                },
            }
        }
    }
}

/// A connection's end, by the way it writes to.
struct Side {
    ways: Rc<RefCell<[Way; 2]>>,
    side: usize,
}

impl Drop for Side {
    fn drop(&mut self) {
        self.ways.borrow_mut()[self.side].is_closed = true;
    }
}

impl AsyncRead for Side {
    fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut ways = self.ways.borrow_mut();
        let way = &mut ways[1 - self.side];
        if way.bytes.is_empty() {
            return if way.is_closed { Poll::Ready(Ok(())) } else { Poll::Pending };
        }
        let count = way.bytes.len().min(into.remaining());
        let bytes: Vec<u8> = way.bytes.drain(..count).collect();
        into.put_slice(&bytes);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Side {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.ways.borrow_mut()[self.side].carry(bytes);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.ways.borrow_mut()[self.side].is_closed = true;
        Poll::Ready(Ok(()))
    }
}

/// What becomes of both, turn by turn, for as long as something may come of it.
fn in_turns<A, B>(near: impl Future<Output = A>, far: impl Future<Output = B>) -> (Option<A>, Option<B>) {
    let (mut near, mut far) = (pin!(near), pin!(far));
    let mut context = Context::from_waker(Waker::noop());
    let (mut here, mut there) = (None, None);
    for _ in 0..TURNS_MAX {
        if here.is_none()
            && let Poll::Ready(end) = near.as_mut().poll(&mut context)
        {
            here = Some(end);
        }
        if there.is_none()
            && let Poll::Ready(end) = far.as_mut().poll(&mut context)
        {
            there = Some(end);
        }
    }
    (here, there)
}

fn name_of(error: &AuthError) -> &'static str {
    match error {
        AuthError::Connection(_) => "connection",
        AuthError::TooSlow => "too slow",
        AuthError::Impostor { .. } => "impostor",
        AuthError::Protocol(_) => "protocol",
        AuthError::NoCommonProtocol { .. } => "no common protocol",
        AuthError::Refused(_) => "told",
        AuthError::Unauthorized { .. } => "unauthorized",
    }
}

type Parts = Result<(Side, Option<Session>), AuthError>;

/// What is left of a connection whose handshake stands.
fn noted(end: Option<Parts>, seen: &mut Outcomes) -> Option<Option<Session>> {
    match end {
        None => seen.note("handshake", "waits"),
        Some(Err(error)) => {
            assert!(!error.to_string().is_empty());
            seen.note("handshake", name_of(&error));
        }
        Some(Ok((_, session))) => {
            seen.note("handshake", if session.is_some() { "encrypted" } else { "in plain" });
            return Some(session);
        }
    }
    None
}

pub(super) fn run(input: &[u8], seen: &mut Outcomes) {
    let mut script = Script::new(input);
    let choice = script.byte();
    let mut ways = [Way::default(), Way::default()];
    for _ in 0..choice >> CHANGES_SHIFT {
        let (how, at, value) = (script.byte(), script.number() as usize % 1024, script.byte());
        ways[usize::from(how >> 7)].changes.push(Change { at, how, value });
    }
    let is_changed = ways.iter().any(|way| !way.changes.is_empty());
    let ways = Rc::new(RefCell::new(ways));
    let [near, far] = [0, 1].map(|side| Side { ways: ways.clone(), side });
    let wants = |bit: u8| if choice & bit != 0 { Encryption::On } else { Encryption::Off };
    let [client, server, other] = &*IDENTITIES;
    let expected = if choice & OTHER_KEY != 0 { other.public() } else { server.public() };
    let authorize = |key: PublicKey| match choice & REFUSES {
        0 => {
            assert_eq!(key, client.public(), "nobody proves a key that it does not have");
            Ok(())
        }
        _ => Err("nobody knows it".to_owned()),
    };
    let connecting = client.connect_over(near, expected, wants(NEAR_ENCRYPTS));
    let (here, there) = in_turns(connecting, server.accept_over(far, wants(FAR_ENCRYPTS), authorize));
    let (here, there) = (noted(here, seen), noted(there, seen));
    let (Some(near), Some(far)) = (here, there) else { return };
    assert_eq!(expected, server.public(), "nobody passes for another");
    assert_eq!(near.is_some(), far.is_some(), "both mean the same");
    let is_wanted = choice & (NEAR_ENCRYPTS | FAR_ENCRYPTS) != 0;
    assert_eq!(near.is_some(), is_wanted, "nobody talks encryption down, or up");
    if let (Some(mut near), Some(mut far)) = (near, far) {
        seen.note("changes", if is_changed { "none that count" } else { "none" });
        speak(&mut near, &mut far, &mut script, seen);
    }
}

/// The records alone, of a connection that needs no handshake.
pub(super) fn run_records(input: &[u8], seen: &mut Outcomes) {
    let [mut near, mut far] = Session::pair();
    speak(&mut near, &mut far, &mut Script::new(input), seen);
}

/// One end says something and the other hears it, whole or changed.
fn speak(near: &mut Session, far: &mut Session, script: &mut Script<'_>, seen: &mut Outcomes) {
    // What comes behind something that was changed may be taken for a part of that.
    let mut is_honest = true;
    for _ in 0..STEPS_MAX {
        let Some(step) = script.step() else { return };
        let (mut said, mut records) = (Vec::new(), VecDeque::new());
        match step % 8 {
            0..=2 => {
                said = script.bytes(usize::from(step)).to_vec();
                near.seal(&[&said[..]], &mut records);
            }
            3 => near.limit_records_per_key(1 + u64::from(script.byte())),
            4 => near.seal_end(&mut records),
            // Whoever has the keys can say anything under them.
            5 | 6 => {
                let kind = [20, ALERT, HANDSHAKE, 23, 24, step][usize::from(script.byte()) % 6];
                let count = usize::from(script.byte()) % 8;
                let payload = match (kind, count) {
                    (ALERT, 1..) => script.bytes(2),
                    (HANDSHAKE, 4..) => &KEY_UPDATE_REQUESTED[..],
                    _ => script.bytes(count),
                };
                near.seal_anything(kind, payload, &mut records);
                is_honest = false;
            }
            _ => {
                records.push_back(script.bytes(usize::from(step >> 3)).to_vec());
                is_honest = false;
            }
        }
        let mut bytes: Vec<u8> = records.into_iter().flatten().collect();
        if step & 0x80 != 0 && !bytes.is_empty() {
            let at = script.number() as usize % bytes.len();
            bytes[at] ^= script.byte().max(1);
            is_honest = false;
        }
        match hear(far, &bytes) {
            Ok(heard) => {
                if is_honest && step % 8 < 3 {
                    assert!(heard == said, "what is heard is what was said");
                    seen.note("records", "read");
                }
            }
            Err(end) => {
                let why = match end {
                    tls::End::Closed => "closed",
                    tls::End::Alert(_) => "alert",
                    tls::End::NoRecord => "no record",
                    tls::End::Forged => "forged",
                    tls::End::Unexpected(_) => "unexpected",
                };
                return seen.note("records", why);
            }
        }
        if far.has_answer() {
            let mut answer = VecDeque::new();
            far.answer(&mut answer);
            let answer: Vec<u8> = answer.into_iter().flatten().collect();
            let heard = hear(near, &answer);
            assert!(heard.is_ok_and(|heard| heard.is_empty()), "a key is renewed in silence");
            seen.note("records", "renewed");
        }
    }
}

/// All that is read when these bytes come, or why nothing more does.
fn hear(session: &mut Session, mut bytes: &[u8]) -> Result<Vec<u8>, tls::End> {
    let (mut heard, mut into) = (Vec::new(), [0; ROOM_BYTES]);
    loop {
        match session.read(&mut into)? {
            0 if bytes.is_empty() => return Ok(heard),
            0 => {
                let space = session.space();
                let count = bytes.len().min(space.len());
                assert!(count > 0, "there is room for more whenever more is needed");
                space[..count].copy_from_slice(&bytes[..count]);
                session.received(count);
                bytes = &bytes[count..];
            }
            count => heard.extend_from_slice(&into[..count]),
        }
    }
}

pub(super) fn examples() -> Vec<Vec<u8>> {
    let mut random = Random::new(1);
    let mut examples = Vec::new();
    for choice in 0..128u8 {
        // What the ends want, and up to seven changes among the first bytes of either: most handshakes end before what takes
        // long.
        let changes = choice >> 4;
        let mut script = vec![choice & 15 | changes << CHANGES_SHIFT];
        for _ in 0..changes {
            let [how, at, high, value]: [u8; 4] = std::array::from_fn(|_| random.next_u64() as u8);
            script.extend([how, at, high & 1, value]);
        }
        script.extend((0..100).map(|_| random.next_u64() as u8));
        examples.push(script);
    }
    examples
}

pub(super) fn examples_of_records() -> Vec<Vec<u8>> {
    let mut random = Random::new(1);
    (0..32).map(|number| (0..8 + 2 * number).map(|_| random.next_u64() as u8).collect()).collect()
}

pub(super) fn expected() -> Vec<Outcome> {
    let handshakes = ["encrypted", "in plain", "connection", "impostor", "protocol", "told", "unauthorized"];
    let handshakes = handshakes.into_iter().map(|how| ("handshake", how));
    handshakes.chain(expected_of_records()).collect()
}

pub(super) fn expected_of_records() -> Vec<Outcome> {
    let records = ["read", "renewed", "closed", "alert", "no record", "forged", "unexpected"];
    records.map(|how| ("records", how)).into()
}
