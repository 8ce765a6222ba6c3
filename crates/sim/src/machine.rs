//! A store on a simulated drive that is sound unless it is told otherwise, driven to rest after every turn: for measurements
//! and for damage that is placed by hand.

use crate::drive::{Completion, SimDrive};
use base::{BLOCK_BYTES, ClusterId, Epoch, LayerId, ObjectKey, OsdId, OsdUuid, PgId, Sequence, crc32c};
use store::{
    Action, DeviceError, Expected, Identity, OpenError, Options, RecordKind, Role, Secret, StageError,
    Staged, Store, WriteRecord,
};
use zerocopy::little_endian::U32;

/// What [`Store::stage_push`] is told of blocks: their checksums, and then of each when it last changed.
#[must_use]
pub fn push_words(checksums: &[u32], changed: impl Fn(usize) -> Sequence) -> Vec<U32> {
    let halves = |number: usize| {
        let Sequence(changed) = changed(number);
        [changed as u32, (changed >> 32) as u32]
    };
    checksums.iter().copied().chain((0..checksums.len()).flat_map(halves)).map(U32::new).collect()
}

/// The identity of a drive, by its number among those of a simulation.
#[must_use]
pub fn identity_of(index: usize) -> Identity {
    Identity {
        cluster: ClusterId::from_bytes([1; 16]),
        osd_uuid: OsdUuid::from_bytes([index as u8 + 2; 16]),
        osd: OsdId(index as u32),
    }
}

/// The same when its number was given to so many other drives, one after the other.
#[must_use]
pub fn identity_after(index: usize, replacements: u8) -> Identity {
    let mut bytes = [index as u8 + 2; 16];
    bytes[15] ^= replacements;
    Identity { osd_uuid: OsdUuid::from_bytes(bytes), ..identity_of(index) }
}

/// Rounds after which a store that does not come to rest is taken for stuck.
const ROUNDS_MAX: u32 = 100_000;

/// A drive and the store on it.
#[derive(Debug)]
pub struct Machine {
    /// The drive; nothing is in flight between two calls.
    pub drive: SimDrive,
    /// The store.
    pub store: Store,
    /// Whether the drive fails all that the store reads.
    pub fails_reads: bool,
    options: Options,
    next_token: u64,
    next_durable: u64,
    shutdown_done: bool,
}

impl Machine {
    /// The secret that every machine's drive is formatted with, unless it is given another.
    pub const SECRET: Secret = *b"nobody knows it!";

    /// The identity that every machine's drive is formatted with.
    #[must_use]
    pub fn identity() -> Identity {
        Identity { osd: OsdId(3), ..identity_of(0) }
    }

    /// Formats `drive` and opens the store on it.
    ///
    /// # Panics
    /// If the store refuses.
    #[must_use]
    pub fn format(drive: SimDrive, options: &Options) -> Machine {
        Machine::format_with(drive, Machine::SECRET, options)
    }

    /// The same with a secret of the caller's.
    ///
    /// # Panics
    /// As [`Machine::format`].
    #[must_use]
    pub fn format_with(mut drive: SimDrive, secret: Secret, options: &Options) -> Machine {
        store::format(&mut drive, Machine::identity(), secret, options)
            .unwrap_or_else(|error| panic!("the drive can be formatted: {error}"));
        Machine::open(drive, options).unwrap_or_else(|(_, error)| panic!("the store can be opened: {error}"))
    }

    /// Opens the store on `drive`.
    ///
    /// # Errors
    /// Why it cannot be opened, with the drive.
    pub fn open(drive: SimDrive, options: &Options) -> Result<Machine, (Box<SimDrive>, OpenError)> {
        Machine::open_of(drive, &Machine::identity(), options)
    }

    /// Opens somebody's store on `drive`.
    ///
    /// # Errors
    /// As [`Machine::open`].
    pub fn open_of(
        mut drive: SimDrive,
        identity: &Identity,
        options: &Options,
    ) -> Result<Machine, (Box<SimDrive>, OpenError)> {
        let expected = Expected { cluster: Some(identity.cluster), osd_uuid: Some(identity.osd_uuid) };
        match Store::open(&mut drive, &expected, options.clone()) {
            Ok(store) => Ok(Machine {
                drive,
                store,
                fails_reads: false,
                options: options.clone(),
                next_token: 1,
                next_durable: 1,
                shutdown_done: false,
            }),
            Err(error) => Err((Box::new(drive), error)),
        }
    }

    /// The key of `object` of the one volume that machines use.
    #[must_use]
    pub fn key(object: u32) -> ObjectKey {
        ObjectKey { pg: PgId::default(), layer: LayerId(1), object }
    }

    /// Stages a write of whole blocks. The log's sequence is the token.
    ///
    /// # Errors
    /// As the store's `stage_write`, except that busy is waited out.
    ///
    /// # Panics
    /// If the store stays busy at rest.
    pub fn write(&mut self, object: u32, first_block: u16, data: &[u8]) -> Result<Staged, StageError> {
        let checksums: Vec<U32> =
            data.chunks_exact(BLOCK_BYTES).map(|block| U32::new(crc32c(block))).collect();
        let record = self.record(object, first_block, checksums.len() as u16, Role::Primary);
        self.stage(|store| store.stage_write(&record, &checksums, data))
    }

    /// Stages what takes the next token; busy is waited out.
    fn stage<T>(&mut self, stage: impl Fn(&mut Store) -> Result<T, StageError>) -> Result<T, StageError> {
        for _ in 0..ROUNDS_MAX {
            match stage(&mut self.store) {
                Err(StageError::Busy) => self.settle(),
                Ok(staged) => {
                    self.next_token += 1;
                    return Ok(staged);
                }
                refused => return refused,
            }
        }
        panic!("the store stays busy at rest: {:?}", self.store.statistics());
    }

    /// Stages a block whose content is lost and had this checksum. No log tells of it; the sequence of its change is the token.
    ///
    /// # Errors
    /// As the store's `stage_damaged`.
    pub fn write_damaged(&mut self, object: u32, block: u16, checksum: u32) -> Result<(), StageError> {
        let changed = self.next_token;
        let words = [checksum, changed as u32, (changed >> 32) as u32].map(U32::new);
        let record = WriteRecord { sequence: Sequence(0), ..self.record(object, block, 1, Role::Recovery) };
        self.stage(|store| store.stage_damaged(&record, &words))
    }

    /// Stages content for one block, `None` for zeros, of which no group's log tells, and not when the block last changed
    /// either.
    ///
    /// # Errors
    /// As the store's `stage_push` and `stage_zero`.
    pub fn forge(
        &mut self,
        key: ObjectKey,
        block: u16,
        content: Option<&[u8; BLOCK_BYTES]>,
    ) -> Result<(), StageError> {
        let sequence = Sequence(0);
        let record = WriteRecord { key, sequence, ..self.record(0, block, 1, Role::Housekeeping) };
        let changed = self.store.changed(&key, block).unwrap_or(Sequence(1));
        self.stage(|store| match content {
            Some(data) => store.stage_push(&record, &push_words(&[crc32c(data)], |_| changed), data),
            None => store.stage_zero(&record),
        })
    }

    /// Stages a zeroing. The log's sequence is the token.
    ///
    /// # Errors
    /// As the store's `stage_zero`.
    pub fn zero(&mut self, object: u32, first_block: u16, block_count: u16) -> Result<(), StageError> {
        let record = self.record(object, first_block, block_count, Role::Housekeeping);
        self.stage(|store| store.stage_zero(&record))
    }

    /// Stages a mark of this place in a group's order, which tells its modulus, or the join of a member that begins to lag.
    ///
    /// # Errors
    /// As the store's `stage_mark`, except that busy is waited out.
    pub fn mark(
        &mut self,
        kind: RecordKind,
        pg: PgId,
        modulus: u32,
        sequence: u64,
    ) -> Result<(), StageError> {
        let token = self.next_token;
        self.stage(|store| store.stage_mark(kind, pg, modulus, Epoch(1), Sequence(sequence), token))
    }

    /// Stages an entry of the group's log about a block whose content comes by other records.
    ///
    /// # Errors
    /// As the store's `stage_entry`, except that busy is waited out.
    pub fn entry(&mut self, object: u32, block: u16, sequence: u64) -> Result<(), StageError> {
        self.entry_of(Machine::key(object), block, sequence)
    }

    /// The same of any group.
    ///
    /// # Errors
    /// As [`Self::entry`].
    pub fn entry_of(&mut self, key: ObjectKey, block: u16, sequence: u64) -> Result<(), StageError> {
        let record = self.record(0, block, 1, Role::Replica);
        let record = WriteRecord { key, sequence: Sequence(sequence), ..record };
        self.stage(|store| store.stage_entry(&record))
    }

    /// Stages the split of a group, which has this modulus from then on.
    ///
    /// # Errors
    /// As the store's `stage_split`.
    pub fn split(&mut self, pg: PgId, modulus: u32) -> Result<(), StageError> {
        let token = self.next_token;
        self.stage(|store| store.stage_split(pg, modulus, token))
    }

    fn record(&self, object: u32, first_block: u16, block_count: u16, role: Role) -> WriteRecord {
        WriteRecord {
            key: Machine::key(object),
            epoch: Epoch(1),
            sequence: Sequence(self.next_token),
            origin: 0,
            first_block,
            block_count,
            token: self.next_token,
            role,
        }
    }

    /// Ends the turn, and completes one operation of the drive. `false` when none is in flight.
    pub fn step(&mut self) -> bool {
        let mut actions = Vec::new();
        self.store.flush(&mut actions);
        self.perform(&mut actions);
        let Some(completion) = self.drive.complete_any() else { return false };
        self.tell(completion, &mut actions);
        true
    }

    /// Tells the store how an operation of the drive ended, and does what it wants then.
    fn tell(&mut self, completion: Completion, actions: &mut Vec<Action>) {
        let fails = self.fails_reads && matches!(completion, Completion::Read(..));
        let result = if fails { Err(DeviceError("it cannot be read".to_owned())) } else { Ok(()) };
        completion.tell(&mut self.store, result, actions);
        self.perform(actions);
    }

    /// A moment passes. Ends the turn, and completes everything until nothing is left to do.
    ///
    /// # Panics
    /// If the store does not come to rest, or reports out of order.
    pub fn settle(&mut self) {
        self.store.retry_reads();
        let mut actions = Vec::new();
        for _ in 0..ROUNDS_MAX {
            self.store.flush(&mut actions);
            self.perform(&mut actions);
            if self.drive.in_flight() == 0 {
                return;
            }
            while let Some(completion) = self.drive.complete_any() {
                self.tell(completion, &mut actions);
            }
        }
        panic!("the store does not come to rest: {:?}", self.store.statistics());
    }

    fn perform(&mut self, actions: &mut Vec<Action>) {
        for action in actions.drain(..) {
            match action {
                Action::Write { token, offset, buffer, length } => self
                    .drive
                    .submit_write(token, offset, buffer, length)
                    .expect("the store writes whole blocks inside its drive"),
                Action::Flush { token } => self.drive.submit_flush(token),
                Action::Read { token, offset, length } => self
                    .drive
                    .submit_read(token, offset, length)
                    .expect("the store reads whole blocks inside its drive"),
                Action::Sealed { .. } => {}
                Action::Durable { token } => {
                    assert_eq!(token, self.next_durable, "reported durable out of order");
                    self.next_durable += 1;
                }
                Action::Lost { token, reason } => panic!("{token} was lost on a sound drive: {reason}"),
                Action::ShutdownDone => self.shutdown_done = true,
            }
        }
    }

    /// How many operations were reported durable.
    #[must_use]
    pub fn durable(&self) -> u64 {
        self.next_durable - 1
    }

    /// Shuts down cleanly and gives the drive back.
    ///
    /// # Panics
    /// If the shutdown does not end, or leaves something not durable.
    #[must_use]
    pub fn shut_down(mut self) -> SimDrive {
        let mut actions = Vec::new();
        self.store.begin_shutdown(&mut actions);
        self.perform(&mut actions);
        for _ in 0..ROUNDS_MAX {
            self.settle();
            if self.shutdown_done {
                assert_eq!(self.next_durable, self.next_token, "all that was staged is durable");
                return self.drive;
            }
        }
        panic!("the shutdown does not end: {:?}", self.store.statistics());
    }

    /// Shuts down cleanly and opens again.
    ///
    /// # Panics
    /// If either fails.
    #[must_use]
    pub fn restart(self) -> Machine {
        let options = self.options.clone();
        Machine::open(self.shut_down(), &options)
            .unwrap_or_else(|(_, error)| panic!("the store can be opened again: {error}"))
    }
}
