//! A session: the keys of both directions of one connection.

use crate::end::End;
use crate::incoming::Incoming;
use crate::{HEADER_BYTES, PLAINTEXT_BYTES_MAX};
use rustls::crypto::cipher::{
    AeadKey, InboundOpaqueMessage, Iv, MessageDecrypter, MessageEncrypter, OutboundChunks,
    OutboundPlainMessage, Tls13AeadAlgorithm,
};
use rustls::kernel::KernelConnection;
use rustls::{
    AlertDescription, ConnectionTrafficSecrets, ContentType, Error, ExtractedSecrets, ProtocolVersion,
    Tls13CipherSuite,
};
use std::collections::VecDeque;

/// Records without data that may follow each other. More keep this side busy with nothing.
const IDLE_RECORDS_MAX: u32 = 32;
/// Records that are opened by one [`Session::read`] at most. Of the largest size a fourth of that has come when there is no more
/// room. Whoever sends tiny ones has others wait for so many of them.
const RECORDS_PER_READ_MAX: u32 = 64;
const _: () = assert!(RECORDS_PER_READ_MAX > IDLE_RECORDS_MAX, "a read that ends for that gave something");
/// A key update that asks for none in return (RFC 8446, section 4.6.3), and one that does.
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 0];
const KEY_UPDATE_REQUESTED: [u8; 5] = [24, 0, 0, 1, 1];
/// The level of an alert, which says nothing any more.
const ALERT_LEVEL_WARNING: u8 = 1;

/// The encryption of one connection, both directions of it. See the crate's documentation for how to drive it.
pub struct Session {
    algorithm: &'static dyn Tls13AeadAlgorithm,
    encrypter: Box<dyn MessageEncrypter>,
    decrypter: Box<dyn MessageDecrypter>,
    /// The numbers of the next records under the keys in use.
    sealed: u64,
    opened: u64,
    /// So many records are sealed under one key.
    records_per_key: u64,
    next_keys: Box<dyn NextKeys>,
    incoming: Incoming,
    idle_records: u32,
    must_update: bool,
    end: Option<End>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Nothing that is secret.
        formatter.debug_struct("Session").field("end", &self.end).finish_non_exhaustive()
    }
}

impl Session {
    /// The session of a connection after its handshake, for which `keys` draws more keys. A handshake that hands these
    /// over could hand them to the kernel as well.
    ///
    /// # Errors
    /// When the handshake agreed on something else than TLS 1.3 with a cipher known here.
    pub fn new<Data: Send + 'static>(
        secrets: ExtractedSecrets,
        keys: KernelConnection<Data>,
    ) -> Result<Session, Error> {
        let not_tls13 = || Error::General("the handshake was not one of TLS 1.3".to_owned());
        let suite = keys.negotiated_cipher_suite().tls13().ok_or_else(not_tls13)?;
        let (sealed, secret) = secrets.tx;
        let sealing = key_of(secret)?;
        let (opened, secret) = secrets.rx;
        let opening = key_of(secret)?;
        Ok(Session { sealed, opened, ..Session::with(suite, [sealing, opening], Box::new(keys)) })
    }

    /// One with the first keys for sealing and for opening, and with those that follow.
    fn with(
        suite: &'static Tls13CipherSuite,
        [sealing, opening]: [(AeadKey, Iv); 2],
        next_keys: Box<dyn NextKeys>,
    ) -> Session {
        Session {
            algorithm: suite.aead_alg,
            encrypter: suite.aead_alg.encrypter(sealing.0, sealing.1),
            decrypter: suite.aead_alg.decrypter(opening.0, opening.1),
            sealed: 0,
            opened: 0,
            // Well before the limit, which is where an attacker's odds stop being negligible.
            records_per_key: suite.common.confidentiality_limit / 2,
            next_keys,
            incoming: Incoming::default(),
            idle_records: 0,
            must_update: false,
            end: None,
        }
    }

    /// Both ends of a connection without a handshake, which takes a hundred times as long: under keys that everybody knows.
    ///
    /// # Panics
    /// Never: the cipher is one of TLS 1.3.
    #[cfg(feature = "testing")]
    #[must_use]
    pub fn pair() -> [Session; 2] {
        let suite = rustls::crypto::ring::cipher_suite::TLS13_AES_256_GCM_SHA384;
        let suite = suite.tls13().expect("the cipher is one of TLS 1.3");
        [(0, 1), (1, 0)].map(|(sealing, opening)| {
            let mut next_keys = KnownKeys { sealing, opening };
            let keys = [next_keys.for_sealing(), next_keys.for_opening()];
            Session::with(suite, keys, Box::new(next_keys))
        })
    }

    /// Seals no more than so many records under one key. For tests: the cipher's own limit is far away.
    pub fn limit_records_per_key(&mut self, records: u64) {
        self.records_per_key = self.records_per_key.min(records.max(1));
    }

    /// Seals pieces of plaintext, one after the other, as one record behind `records`.
    ///
    /// # Panics
    /// If they are more than [`PLAINTEXT_BYTES_MAX`](crate::PLAINTEXT_BYTES_MAX).
    pub fn seal(&mut self, pieces: &[&[u8]], records: &mut VecDeque<Vec<u8>>) {
        if self.sealed >= self.records_per_key {
            self.update_sealing(records);
        }
        records.push_back(self.seal_as(ContentType::ApplicationData, OutboundChunks::new(pieces)));
    }

    /// Seals the word that nothing follows. Who reads it knows that nothing was cut off.
    pub fn seal_end(&mut self, records: &mut VecDeque<Vec<u8>>) {
        let close_notify = [ALERT_LEVEL_WARNING, AlertDescription::CloseNotify.into()];
        records.push_back(self.seal_as(ContentType::Alert, OutboundChunks::Single(&close_notify)));
    }

    /// Seals a record of any kind, as whoever has the keys can.
    ///
    /// # Panics
    /// As [`Self::seal`].
    #[cfg(feature = "testing")]
    pub fn seal_anything(&mut self, kind: u8, payload: &[u8], records: &mut VecDeque<Vec<u8>>) {
        records.push_back(self.seal_as(ContentType::from(kind), OutboundChunks::Single(payload)));
    }

    /// Whether the other side asked for something that [`Self::answer`] has.
    #[must_use]
    pub fn has_answer(&self) -> bool {
        self.must_update
    }

    /// Seals what the other side asked for, if it did.
    pub fn answer(&mut self, records: &mut VecDeque<Vec<u8>>) {
        if self.must_update {
            self.update_sealing(records);
        }
    }

    /// Where received bytes go. Never empty after a [`Self::read`] that had room and answered 0.
    pub fn space(&mut self) -> &mut [u8] {
        self.space_within(usize::MAX)
    }

    /// The same in no more memory than `bytes`, or one record's; what is beyond is given back when nothing is in it.
    pub fn space_within(&mut self, bytes: usize) -> &mut [u8] {
        self.incoming.space(bytes)
    }

    /// Says how many bytes were put into [`Self::space`].
    ///
    /// # Panics
    /// If they do not fit there.
    pub fn received(&mut self, count: usize) {
        self.incoming.received(count);
    }

    /// Whether everything that was received was read.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        self.incoming.is_empty()
    }

    /// Has what came with the handshake read first: what was opened of it, and what was not. Before anything was received.
    ///
    /// # Panics
    /// Something was.
    pub fn begin_with(&mut self, plaintext: &[u8], sealed: &[u8]) {
        self.incoming.begin_with(plaintext, sealed);
    }

    /// Moves plaintext into `into`, and answers how many bytes: of no more than some dozens of records, so that there may be
    /// more. 0 says, if there was room, that more must be received.
    ///
    /// # Errors
    /// Once everything that verified before has been read: why nothing more comes.
    pub fn read(&mut self, into: &mut [u8]) -> Result<usize, End> {
        let (mut count, mut records) = (0, 0);
        loop {
            count += self.incoming.take(&mut into[count..]);
            if count == into.len() || records == RECORDS_PER_READ_MAX || self.end.is_some() {
                break;
            }
            records += 1;
            match self.open_next() {
                Ok(true) => {}
                Ok(false) => break,
                Err(end) => self.end = Some(end),
            }
        }
        match &self.end {
            Some(end) if count == 0 && !into.is_empty() => Err(end.clone()),
            _ => Ok(count),
        }
    }

    /// Opens the next record; false when it has not come yet.
    fn open_next(&mut self) -> Result<bool, End> {
        let Some(record) = self.incoming.next_record()? else { return Ok(false) };
        let record_bytes = record.len();
        let record =
            InboundOpaqueMessage::new(ContentType::ApplicationData, ProtocolVersion::TLSv1_2, record);
        let opened = self.decrypter.decrypt(record, self.opened).map_err(|error| match error {
            Error::DecryptError => End::Forged,
            _ => End::Unexpected("a record whose inside makes no sense"),
        })?;
        self.opened += 1;
        let (kind, payload) = (opened.typ, opened.payload);
        if kind == ContentType::ApplicationData && !payload.is_empty() {
            self.idle_records = 0;
            let plaintext_bytes = payload.len();
            self.incoming.opened(record_bytes, plaintext_bytes);
            return Ok(true);
        }
        self.idle_records += 1;
        if self.idle_records > IDLE_RECORDS_MAX {
            return Err(End::Unexpected("nothing but records without data"));
        }
        match (kind, payload) {
            (ContentType::ApplicationData, _) => {}
            (ContentType::Handshake, payload) if payload == KEY_UPDATE => self.update_opening(),
            (ContentType::Handshake, payload) if payload == KEY_UPDATE_REQUESTED => {
                self.update_opening();
                self.must_update = true;
            }
            (ContentType::Handshake, _) => {
                return Err(End::Unexpected("a message of the handshake after its end"));
            }
            (ContentType::Alert, &[_, description]) => {
                return Err(match AlertDescription::from(description) {
                    AlertDescription::CloseNotify => End::Closed,
                    other => End::Alert(format!("{other:?}")),
                });
            }
            _ => return Err(End::Unexpected("a record of an unknown kind")),
        }
        Ok(true)
    }

    fn seal_as(&mut self, typ: ContentType, payload: OutboundChunks<'_>) -> Vec<u8> {
        assert!(payload.len() <= PLAINTEXT_BYTES_MAX, "what is to be one record fits one");
        let plaintext = OutboundPlainMessage { typ, version: ProtocolVersion::TLSv1_3, payload };
        let sealed = self.encrypter.encrypt(plaintext, self.sealed);
        // Under no circumstances is a number used again.
        self.sealed += 1;
        let record = sealed.expect("what fits a record can be sealed").encode();
        assert!(record.len() > HEADER_BYTES, "a sealed record has a header and a tag");
        record
    }

    /// Says, under the old key, that another follows, and takes that.
    fn update_sealing(&mut self, records: &mut VecDeque<Vec<u8>>) {
        records.push_back(self.seal_as(ContentType::Handshake, OutboundChunks::Single(&KEY_UPDATE)));
        let (key, iv) = self.next_keys.for_sealing();
        self.encrypter = self.algorithm.encrypter(key, iv);
        (self.sealed, self.must_update) = (0, false);
    }

    fn update_opening(&mut self) {
        let (key, iv) = self.next_keys.for_opening();
        self.decrypter = self.algorithm.decrypter(key, iv);
        self.opened = 0;
    }
}

/// Draws one key after the other, for either direction.
trait NextKeys: Send {
    fn for_sealing(&mut self) -> (AeadKey, Iv);
    fn for_opening(&mut self) -> (AeadKey, Iv);
}

impl<Data: Send> NextKeys for KernelConnection<Data> {
    fn for_sealing(&mut self) -> (AeadKey, Iv) {
        next_key(self.update_tx_secret())
    }
    fn for_opening(&mut self) -> (AeadKey, Iv) {
        next_key(self.update_rx_secret())
    }
}

/// Keys that follow from their numbers. Those of the two directions take turns.
#[cfg(feature = "testing")]
struct KnownKeys {
    sealing: u8,
    opening: u8,
}

#[cfg(feature = "testing")]
impl KnownKeys {
    fn take(number: &mut u8) -> (AeadKey, Iv) {
        let now = *number;
        *number = number.wrapping_add(2);
        (AeadKey::from([now; 32]), Iv::from([now; 12]))
    }
}

#[cfg(feature = "testing")]
impl NextKeys for KnownKeys {
    fn for_sealing(&mut self) -> (AeadKey, Iv) {
        KnownKeys::take(&mut self.sealing)
    }
    fn for_opening(&mut self) -> (AeadKey, Iv) {
        KnownKeys::take(&mut self.opening)
    }
}

/// Each key is derived from the one before (RFC 8446, section 7.2), by itself.
fn next_key(updated: Result<(u64, ConnectionTrafficSecrets), Error>) -> (AeadKey, Iv) {
    let (_, secret) = updated.expect("a session of TLS 1.3 has another key");
    key_of(secret).expect("the next key is for the cipher of the one before")
}

fn key_of(secret: ConnectionTrafficSecrets) -> Result<(AeadKey, Iv), Error> {
    match secret {
        ConnectionTrafficSecrets::Aes128Gcm { key, iv }
        | ConnectionTrafficSecrets::Aes256Gcm { key, iv }
        | ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => Ok((key, iv)),
        _ => Err(Error::General("the handshake agreed on a cipher that is not known here".to_owned())),
    }
}
