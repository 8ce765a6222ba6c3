//! Messages of somebody who knows the protocol and means harm, for tests: well formed, saying anything that can be said.
//!
//! What is named in them is mostly in use, by the sender or by others, for only that gets past the first check: an object of
//! another pool, the epoch that comes next, the name of somebody else's write. [`Forger::twisted`], [`Forger::cut_off`] and
//! [`Forger::garbage`] are what no honest sender says at all.

use crate::*;
use base::log_entry::{MEND, REPAIR, UNDONE};
use base::{
    BLOCK_BYTES, BlockRange, ClientId, ClusterId, Epoch, Generation, LayerId, Limited, LogEntry,
    OBJECT_BLOCKS, OBJECT_BYTES, ObjectKey, OsdId, PgId, PoolId, Sequence, VolumeId, crc32c,
};
use zerocopy::little_endian::U32;

/// What clients say to OSDs.
pub const OF_CLIENTS: [Kind; 8] = [
    Kind::Hello,
    Kind::Read,
    Kind::Write,
    Kind::Zero,
    Kind::Allocated,
    Kind::Changed,
    Kind::Space,
    Kind::Fence,
];

/// The most words of a header and what stands behind it that are twisted.
const TWISTED_WORDS_MAX: usize = 2 * HEADER_BYTES / size_of::<U32>();

/// What there is to be named, of the sender and of others. Any list may be empty.
#[derive(Clone, Debug, Default)]
pub struct InUse {
    /// Objects, each of the group and the volume that it belongs to.
    pub keys: Vec<ObjectKey>,
    /// Epochs of groups.
    pub epochs: Vec<Epoch>,
    /// Attach generations of volumes.
    pub generations: Vec<Generation>,
    /// Places in the order of groups.
    pub sequences: Vec<Sequence>,
    /// Names of writes.
    pub origins: Vec<u64>,
    /// Numbers of requests, or of replicated messages.
    pub requests: Vec<u64>,
    /// Clients.
    pub clients: Vec<ClientId>,
    /// OSDs.
    pub osds: Vec<OsdId>,
    /// The cluster.
    pub cluster: ClusterId,
}

/// Makes messages up, from a source of 64 random bits at a time. The same source makes the same ones.
#[derive(Debug)]
pub struct Forger<'a, R> {
    in_use: &'a InUse,
    random: R,
    blocks_max: usize,
}

impl<'a, R: FnMut() -> u64> Forger<'a, R> {
    /// Names what is in use there.
    pub fn new(in_use: &'a InUse, random: R) -> Forger<'a, R> {
        Forger { in_use, random, blocks_max: BLOCKS_PER_MESSAGE_MAX }
    }

    /// Has at most so many blocks of data in a message, or asked for by one; at least one.
    #[must_use]
    pub fn with_blocks_max(self, blocks_max: usize) -> Self {
        Forger { blocks_max: blocks_max.clamp(1, BLOCKS_PER_MESSAGE_MAX), ..self }
    }

    /// A whole message of that kind that is parsed as one.
    pub fn message(&mut self, kind: Kind) -> Vec<u8> {
        match kind {
            Kind::Hello => self.hello().encode(),
            Kind::Welcome => Welcome { version: VERSIONS.newest }.encode().to_vec(),
            Kind::Refused => {
                let reason = "because ".repeat(self.below(80) as usize);
                Refused { reason: &reason }.encode()
            }
            Kind::Read | Kind::Zero | Kind::Allocated | Kind::Changed | Kind::Space => {
                self.request(kind).encode(kind).to_vec()
            }
            Kind::Write => {
                let request = self.request(kind);
                let bytes = request.encode(kind).to_vec();
                self.with_data(bytes, request.offset as usize, request.length as usize, 0)
            }
            Kind::Reply => self.reply(),
            Kind::ReplicateWrite | Kind::ReplicateZero | Kind::ReplicateHole => {
                let range = self.range(kind);
                let (epoch, sequence, origin) = (self.epoch(), self.sequence(), self.origin());
                let bytes = Replicate { range, epoch, sequence, origin }.encode(kind).to_vec();
                self.with_blocks(bytes, &range, kind == Kind::ReplicateWrite)
            }
            Kind::ReplicateAck => {
                let (through, is_full) = (self.request_number(), self.one_in(4));
                ReplicateAck { through, is_full, takes_no_objects: self.one_in(4) }.encode().to_vec()
            }
            Kind::ReplicateRefused => {
                let (ordinal, status, epoch) = (self.request_number(), self.status(), self.epoch());
                ReplicateRefused { ordinal, status, epoch }.encode().to_vec()
            }
            Kind::Query => self.query().encode().to_vec(),
            Kind::Position => self.position(),
            Kind::Activate => {
                let (pg, epoch, mark) = (self.key().pg, self.epoch(), self.sequence());
                let join = self.one_in(2).then(|| self.sequence());
                Activate { pg, epoch, mark, join }.encode().to_vec()
            }
            Kind::Serves | Kind::Whole => {
                GroupEpoch { pg: self.key().pg, epoch: self.epoch() }.encode(kind).to_vec()
            }
            Kind::Lease => self.lease().encode().to_vec(),
            Kind::PushWrite => {
                let range = self.range(kind);
                let bytes = Push { range, epoch: self.epoch() }.encode(kind).to_vec();
                let data_bytes = usize::from(range.block_count) * BLOCK_BYTES;
                self.with_data(bytes, 0, data_bytes, range.block_count.into())
            }
            Kind::PushZero => Push { range: self.range(kind), epoch: self.epoch() }.encode(kind).to_vec(),
            Kind::PushHole => {
                let (range, epoch, changed) = (self.range(kind), self.epoch(), self.sequence());
                PushHole { range, epoch, changed }.encode().to_vec()
            }
            Kind::PushLost => {
                let mut bytes = Push { range: self.range(kind), epoch: self.epoch() }.encode(kind).to_vec();
                bytes.extend_from_slice(&(self.draw() as u32).to_le_bytes());
                bytes.extend_from_slice(&self.sequence().0.to_le_bytes());
                bytes
            }
            Kind::PushEntry => {
                let (pg, epoch, entry) = (self.key().pg, self.epoch(), self.entry());
                PushEntry { pg, epoch, entry }.encode().to_vec()
            }
            Kind::ListObjects => {
                let ObjectKey { pg, layer: volume, object } = self.key();
                let after = self.one_in(2).then_some((volume, object));
                ListObjects { pg, epoch: self.epoch(), after }.encode().to_vec()
            }
            Kind::Objects => self.objects(),
            Kind::ListBlocks | Kind::Reached => {
                ObjectEpoch { key: self.key(), epoch: self.epoch() }.encode(kind).to_vec()
            }
            Kind::Blocks => {
                let of = ObjectEpoch { key: self.key(), epoch: self.epoch() };
                let (allocated, doubted) = (self.bits(), self.bits());
                Blocks { of, allocated: &allocated, doubted: &doubted }.encode()
            }
            Kind::Fetch => self.inquiry(kind).encode().to_vec(),
            Kind::Fetched => self.fetched(),
            Kind::Check => {
                let mut inquiry = self.inquiry(kind);
                let deep = self.one_in(2).then(|| self.draw());
                if deep.is_some() {
                    inquiry.range.block_count = inquiry.range.block_count.min(CHECK_BLOCKS_MAX);
                }
                Check { inquiry, deep }.encode().to_vec()
            }
            Kind::Checked => {
                let inquiry = self.inquiry(kind);
                let findings = Findings { damaged: self.draw(), digest: [self.draw(), self.draw()] };
                Checked { inquiry, findings }.encode()
            }
            Kind::Fence | Kind::FenceDone => self.fence().encode(kind).to_vec(),
            Kind::AskAllowance | Kind::Allowance => self.allowance().encode(kind).to_vec(),
        }
    }

    /// A message of that kind in whose first words something else stands, sealed anew: mostly none that there is.
    pub fn twisted(&mut self, kind: Kind) -> Vec<u8> {
        let mut bytes = self.message(kind);
        let words = (bytes.len() / size_of::<U32>()).min(TWISTED_WORDS_MAX);
        for _ in 0..1 + self.below(2) {
            // The first word is the checksum.
            let at = (1 + self.below(words as u64 - 1) as usize) * size_of::<U32>();
            let word = bytes[at..].first_chunk_mut::<4>().expect("all words are there");
            let now = u32::from_le_bytes(*word);
            *word = match self.below(4) {
                0 => now ^ (1 << self.below(32)),
                _ => self.number(Some(now.into())) as u32,
            }
            .to_le_bytes();
        }
        seal(bytes.first_chunk_mut().expect("a message begins with a header"));
        bytes
    }

    /// A message of that kind whose end is missing.
    pub fn cut_off(&mut self, kind: Kind) -> Vec<u8> {
        let mut bytes = self.message(kind);
        bytes.truncate(self.below(bytes.len() as u64) as usize);
        bytes
    }

    /// Bytes that are no message, some thousand at most.
    pub fn garbage(&mut self) -> Vec<u8> {
        let words = 1 + self.below(512);
        (0..words).flat_map(|_| self.draw().to_le_bytes()).collect()
    }

    /// Somebody who says that.
    pub fn hello(&mut self) -> Hello {
        let in_use = self.in_use;
        let role = match self.below(2) {
            0 => {
                let known = self.one_of(&in_use.clients).map(|client| client.0);
                Role::Client(ClientId(self.number(known)))
            }
            _ => Role::Osd(self.osd()),
        };
        let cluster = match self.below(8) {
            0 => ClusterId::from_bytes(u128::from(self.draw()).to_le_bytes()),
            _ => in_use.cluster,
        };
        let newest = VERSIONS.newest.0;
        let oldest = Version(1 + self.below(newest.into()) as u16);
        let versions = Versions { oldest, newest: Version(newest + self.below(3) as u16) };
        Hello { role, cluster, target: self.osd(), versions }
    }

    /// What a client may ask of that kind, as far as its header says.
    pub fn request(&mut self, kind: Kind) -> Request {
        let is_aligned = kind == Kind::Zero || self.one_in(2);
        let (offset, length) = if is_aligned {
            let range = self.range(kind);
            (
                u32::from(range.first_block) * BLOCK_BYTES as u32,
                u32::from(range.block_count) * BLOCK_BYTES as u32,
            )
        } else {
            let length_max = PAYLOAD_BYTES_MAX.min(self.blocks_max * BLOCK_BYTES);
            let length = 1 + self.below(length_max as u64);
            (self.below(OBJECT_BYTES - length + 1) as u32, length as u32)
        };
        let may_repeat = matches!(kind, Kind::Write | Kind::Zero) && self.one_in(4);
        Request {
            request: self.request_number(),
            key: self.key(),
            offset,
            length,
            epoch: self.epoch(),
            generation: self.generation(),
            origin: self.origin(),
            since: may_repeat.then(|| self.sequence()),
            unverified: kind == Kind::Read && self.one_in(2),
            of_snapshot: matches!(kind, Kind::Read | Kind::Allocated | Kind::Changed | Kind::Space)
                && self.one_in(4),
        }
    }

    /// An order to serve nobody who is older, or the answer to it.
    pub fn fence(&mut self) -> Fence {
        // A layer of another number than 0 is no volume's first one, as far as anybody knows.
        let volume = VolumeId(self.key().layer.0);
        let (request, generation) = (self.request_number(), self.generation());
        Fence { request, volume, generation }
    }

    /// What may be done by the limit of a volume, or of a key.
    fn allowance(&mut self) -> Allowance {
        let (volume, of_key, is_all) = (self.key().layer.volume(), self.one_in(4), self.one_in(4));
        let of = if of_key { Limited::Key(self.draw()) } else { Limited::Volume(volume) };
        let [reads, changes] = [(); 2].map(|()| self.number(None) as u32);
        let [read_bytes, changed_bytes] = [(); 2].map(|()| self.number(None));
        Allowance { of, is_all, reads, changes, read_bytes, changed_bytes }
    }

    /// A number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.draw() % limit
    }

    fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    fn draw(&mut self) -> u64 {
        (self.random)()
    }

    fn one_of<T: Copy>(&mut self, list: &[T]) -> Option<T> {
        let at = self.below(list.len().max(1) as u64) as usize;
        list.get(at).copied()
    }

    /// Mostly the one that is known to be in use; else one beside it, an extreme, or any.
    fn number(&mut self, known: Option<u64>) -> u64 {
        let any = self.draw();
        let Some(known) = known else { return any >> self.below(64) };
        match self.below(16) {
            0 => known.wrapping_add(1),
            1 => known.wrapping_sub(1),
            2 => u64::MAX >> self.below(64),
            3 => any,
            4 => 0,
            _ => known,
        }
    }

    fn osd(&mut self) -> OsdId {
        let in_use = self.in_use;
        let known = self.one_of(&in_use.osds).map(|osd| osd.0.into());
        OsdId(self.number(known) as u32)
    }

    fn epoch(&mut self) -> Epoch {
        let in_use = self.in_use;
        let known = self.one_of(&in_use.epochs).map(|epoch| epoch.0.into());
        Epoch(self.number(known) as u32)
    }

    fn generation(&mut self) -> Generation {
        let in_use = self.in_use;
        let known = self.one_of(&in_use.generations).map(|generation| generation.0.into());
        Generation(self.number(known) as u32)
    }

    fn sequence(&mut self) -> Sequence {
        let in_use = self.in_use;
        let known = self.one_of(&in_use.sequences).map(|sequence| sequence.0);
        Sequence(self.number(known))
    }

    /// The name of a write, which may say that it is what no client's is.
    fn origin(&mut self) -> u64 {
        let in_use = self.in_use;
        let known = self.one_of(&in_use.origins);
        let name = self.number(known);
        match self.below(8) {
            0 => name | REPAIR,
            1 => name | UNDONE,
            2 => name | REPAIR | MEND,
            _ => name,
        }
    }

    fn request_number(&mut self) -> u64 {
        let in_use = self.in_use;
        let known = self.one_of(&in_use.requests);
        self.number(known)
    }

    fn status(&mut self) -> Status {
        self.one_of(Status::ALL).expect("there are some")
    }

    /// An object in use, or one of which a part is another's, or nobody's.
    fn key(&mut self) -> ObjectKey {
        let in_use = self.in_use;
        let mut key = self.one_of(&in_use.keys).unwrap_or_default();
        let other = self.one_of(&in_use.keys).unwrap_or_default();
        match self.below(12) {
            0 => key.pg = other.pg,
            1 => key.layer = other.layer,
            2 => key.object = other.object,
            3 => key.object = self.number(Some(key.object.into())) as u32,
            4 => key.layer = LayerId(self.number(Some(key.layer.0))),
            5 => {
                let pool = PoolId(self.number(Some(key.pg.pool.0.into())) as u32);
                key.pg = PgId { pool, index: self.number(Some(key.pg.index.into())) as u32 };
            }
            _ => {}
        }
        key
    }

    /// Blocks that a message of that kind may be about.
    fn range(&mut self, kind: Kind) -> BlockRange {
        let count_max = match kind {
            Kind::Read | Kind::Write => self.blocks_max.min(BLOCKS_PER_MESSAGE_MAX - 1),
            Kind::ReplicateWrite | Kind::PushWrite | Kind::Fetch | Kind::Fetched => self.blocks_max,
            Kind::PushLost => 1,
            _ => OBJECT_BLOCKS,
        };
        let block_count = match self.below(4) {
            0 => count_max,
            1 => 1 + self.below(count_max as u64) as usize,
            _ => 1,
        };
        let last = OBJECT_BLOCKS - block_count;
        let first_block = match self.below(4) {
            0 => last,
            1 => self.below(last as u64 + 1) as usize,
            // Where others are too.
            _ => self.below(last.min(8) as u64 + 1) as usize,
        };
        BlockRange { key: self.key(), first_block: first_block as u16, block_count: block_count as u16 }
    }

    fn bits(&mut self) -> BlockBits {
        let word = self.draw().to_le_bytes();
        std::array::from_fn(|at| word[at % word.len()])
    }

    /// Behind a header, the checksums of data that begins there in an object, mostly right; so many sequences; the data.
    fn with_data(
        &mut self,
        mut bytes: Vec<u8>,
        offset: usize,
        data_bytes: usize,
        sequences: usize,
    ) -> Vec<u8> {
        let word = if self.one_in(4) { 0 } else { self.draw() };
        let mut data = word.to_le_bytes().repeat(data_bytes.div_ceil(size_of::<u64>()));
        data.truncate(data_bytes);
        let (head, rest) = data.split_at(data_bytes.min(BLOCK_BYTES - offset % BLOCK_BYTES));
        let mut checksums: Vec<u32> =
            std::iter::once(head).chain(rest.chunks(BLOCK_BYTES)).map(crc32c).collect();
        if self.one_in(8) {
            let at = self.below(checksums.len() as u64) as usize;
            checksums[at] ^= 1 << self.below(32);
        }
        bytes.extend(checksums.into_iter().flat_map(u32::to_le_bytes));
        for _ in 0..sequences {
            bytes.extend_from_slice(&self.sequence().0.to_le_bytes());
        }
        bytes.extend_from_slice(&data);
        bytes
    }

    /// Behind a header, whole blocks with their checksums, if there are any.
    fn with_blocks(&mut self, bytes: Vec<u8>, range: &BlockRange, has_blocks: bool) -> Vec<u8> {
        match has_blocks {
            true => self.with_data(bytes, 0, usize::from(range.block_count) * BLOCK_BYTES, 0),
            false => bytes,
        }
    }

    fn reply(&mut self) -> Vec<u8> {
        let (request, reached) = (self.request_number(), self.sequence());
        match self.below(4) {
            0 => {
                let details = RefusalDetails {
                    epoch: self.epoch(),
                    generation: self.generation(),
                    offset: self.draw() as u32,
                    osd: self.osd(),
                    was_not_begun: self.one_in(2),
                };
                Outcome::refused(request, self.status(), details).to_vec()
            }
            1 => Outcome::zeros(request, reached).to_vec(),
            2 => {
                let bits = self.bits();
                [&Outcome::done(request, reached, bits.len())[..], &bits].concat()
            }
            _ => {
                let data_bytes = (1 + self.below(self.blocks_max as u64) as usize) * BLOCK_BYTES;
                let body_bytes = data_bytes + data_bytes / BLOCK_BYTES * size_of::<U32>();
                let header = Outcome::done(request, reached, body_bytes).to_vec();
                self.with_data(header, 0, data_bytes, 0)
            }
        }
    }

    fn query(&mut self) -> Query {
        let mut pg = self.key().pg;
        pg.index %= PgId::COUNT_MAX;
        // A group's number is below it.
        let above = u64::from(PgId::COUNT_MAX - pg.index);
        let more = if self.one_in(2) { self.below(above) } else { self.below(above.min(8)) };
        Query { pg, modulus: pg.index + 1 + more as u32, epoch: self.epoch() }
    }

    /// How many of something that may be many.
    fn count(&mut self) -> u64 {
        match self.below(8) {
            0 => ENTRIES_MAX as u64,
            _ => self.below(8),
        }
    }

    fn entry(&mut self) -> LogEntry {
        let (epoch, sequence) = (self.epoch(), self.sequence());
        let BlockRange { key, first_block, block_count } = self.range(Kind::ReplicateZero);
        let block_count = if self.one_in(4) { 0 } else { block_count };
        let ObjectKey { layer: volume, object, .. } = key;
        LogEntry { epoch, sequence, layer: volume, object, first_block, block_count, origin: self.origin() }
    }

    fn position(&mut self) -> Vec<u8> {
        let state = LogState {
            pg: self.key().pg,
            epoch: self.epoch(),
            last_sequence: self.sequence(),
            log_begins: self.sequence(),
            is_incomplete: self.one_in(4),
            may_lack_tail: self.one_in(4),
        };
        let entries: Vec<LogEntry> = (0..self.count()).map(|_| self.entry()).collect();
        state.encode(entries.into_iter())
    }

    fn lease(&mut self) -> Lease {
        let mut milliseconds = || self.below(u64::from(LEASE_MS_MAX) + 1) as u32;
        let (ttl_ms, granted_ttl_ms) = (milliseconds(), milliseconds());
        Lease { ttl_ms, stamp: self.request_number(), granted_ttl_ms, granted_stamp: self.request_number() }
    }

    fn objects(&mut self) -> Vec<u8> {
        let page = Page { pg: self.key().pg, epoch: self.epoch(), is_last: self.one_in(2) };
        let mut held = Vec::new();
        for _ in 0..self.count() {
            let ObjectKey { layer, object, .. } = self.key();
            let (block_count, has_doubts) = (self.draw() as u16, self.draw() as u16);
            held.push(ObjectHeld { layer, object, block_count, has_doubts, through: self.sequence() });
        }
        page.encode(held.into_iter())
    }

    fn inquiry(&mut self, kind: Kind) -> Inquiry {
        Inquiry { request: self.request_number(), range: self.range(kind), epoch: self.epoch() }
    }

    fn fetched(&mut self) -> Vec<u8> {
        let (inquiry, status) = (self.inquiry(Kind::Fetched), self.status());
        let (through, written_in) = (self.sequence(), self.one_in(2).then(|| self.epoch()));
        let has_blocks = self.one_in(2);
        let bytes = Found { inquiry, status, through, written_in }.encode(has_blocks).to_vec();
        self.with_blocks(bytes, &inquiry.range, has_blocks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn in_use() -> InUse {
        let key = |pool, layer, object| {
            let (pool, layer) = (PoolId(pool), LayerId(layer));
            ObjectKey { pg: PgId::of_object(pool, 8, layer, object), layer, object }
        };
        InUse {
            keys: vec![key(1, 3, 0), key(1, 3, 7), key(2, 4, 1)],
            epochs: vec![Epoch(5)],
            generations: vec![Generation(2)],
            sequences: vec![Sequence(99)],
            origins: vec![0x1234],
            requests: vec![7],
            clients: vec![ClientId(11)],
            osds: vec![OsdId(0), OsdId(1)],
            cluster: ClusterId::from_bytes([7; 16]),
        }
    }

    fn source(seed: u64) -> impl FnMut() -> u64 {
        let mut state = seed;
        move || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            base::hash::mix(state)
        }
    }

    #[test]
    fn what_is_made_up_is_a_message_of_its_kind_whatever_is_in_use() {
        for in_use in [in_use(), InUse::default()] {
            for kind in Kind::ALL {
                let mut forger = Forger::new(&in_use, source(*kind as u64));
                for round in 0..300 {
                    let bytes = forger.message(*kind);
                    assert_eq!(bytes[4], *kind as u8);
                    match parse(&bytes) {
                        Ok(Some((_, size))) => assert_eq!(size, bytes.len(), "{kind:?}, round {round}"),
                        other => panic!("{kind:?}, round {round}: {other:?}"),
                    }
                }
            }
        }
    }

    #[test]
    fn who_is_held_to_few_blocks_has_no_more_in_a_message() {
        let in_use = in_use();
        for kind in [Kind::Write, Kind::ReplicateWrite, Kind::PushWrite, Kind::Fetched, Kind::Reply] {
            let mut forger = Forger::new(&in_use, source(1)).with_blocks_max(2);
            for _ in 0..300 {
                let bytes = forger.message(kind);
                assert!(bytes.len() < 3 * BLOCK_BYTES, "{kind:?}: {} bytes", bytes.len());
                assert!(matches!(parse(&bytes), Ok(Some((_, size))) if size == bytes.len()), "{kind:?}");
            }
        }
    }

    #[test]
    fn one_source_makes_the_same_messages_again() {
        let in_use = in_use();
        let made = |seed| {
            let mut forger = Forger::new(&in_use, source(seed));
            Kind::ALL.iter().flat_map(|kind| forger.twisted(*kind)).collect::<Vec<u8>>()
        };
        assert_eq!(made(1), made(1));
        assert_ne!(made(1), made(2));
    }

    /// What lies behind the checksum is reached: no kind is refused for one reason only, and all reasons come up.
    #[test]
    fn what_is_twisted_is_refused_for_every_reason_or_says_something_else() {
        let in_use = in_use();
        let (mut reasons, mut fields, mut untouched) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for kind in Kind::ALL {
            let mut forger = Forger::new(&in_use, source(*kind as u64));
            untouched.insert(*kind as u8);
            for _ in 0..3000 {
                let bytes = forger.twisted(*kind);
                reasons.insert(match parse(&bytes) {
                    Ok(None) => "a longer body is awaited",
                    Ok(Some(_)) => {
                        untouched.remove(&(*kind as u8));
                        "none"
                    }
                    Err(WireError::HeaderChecksum) => panic!("it is sealed"),
                    Err(WireError::NotMillpond) => "not Millpond",
                    Err(WireError::Version { .. }) => "version",
                    Err(WireError::Kind(_)) => "kind",
                    Err(WireError::Field { field, .. }) => {
                        fields.insert(field);
                        "field"
                    }
                    Err(WireError::Reserved(_)) => "reserved",
                });
            }
        }
        assert_eq!(reasons.len(), 7, "{reasons:?}");
        for field in ["length", "offset", "alignment", "body length", "number of blocks", "last block"] {
            assert!(fields.contains(field), "{field} of {fields:?}");
        }
        assert!(untouched.is_empty(), "{untouched:?}");
    }

    #[test]
    fn what_is_cut_off_is_never_a_message_nor_refused_before_its_end() {
        let in_use = in_use();
        for kind in Kind::ALL {
            let mut forger = Forger::new(&in_use, source(*kind as u64));
            for _ in 0..50 {
                assert_eq!(parse(&forger.cut_off(*kind)), Ok(None), "{kind:?}");
            }
        }
    }
}
