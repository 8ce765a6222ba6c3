//! Staging: what is to be written goes to the open foreground batch, as one record each.

use crate::actions::{Role, StageError, Staged, WriteRecord};
use crate::layout::{GROUP_MODULUS_MAX, RECORD_IS_DAMAGED, Record, RecordKind};
use crate::space::Space;
use crate::store::Store;
use base::{BLOCK_BYTES, Epoch, ObjectKey, PgId, PoolId, Sequence, crc32c};
use zerocopy::little_endian::U32;

impl Store {
    /// Appends a write of whole blocks to the open batch. `checksums` has one for each block.
    ///
    /// # Errors
    /// When the OSD is full for this role, busy, or has failed.
    ///
    /// # Panics
    /// If lengths do not match, or the record is larger than a batch.
    pub fn stage_write(
        &mut self,
        record: &WriteRecord,
        checksums: &[U32],
        data: &[u8],
    ) -> Result<Staged, StageError> {
        assert!(record.block_count > 0, "a write is of some blocks");
        assert_eq!(data.len(), usize::from(record.block_count) * BLOCK_BYTES, "data is whole blocks");
        assert_eq!(checksums.len(), usize::from(record.block_count), "a checksum for each block");
        self.check_space(record)?;
        let (on_drive, segments) = (on_drive(RecordKind::Write, record), &self.contents.segments);
        self.log.stage(RecordKind::Write, &on_drive, (checksums, data), record.token, segments)
    }

    /// Appends what a learner lacked, out of order: whole blocks. `words` has the checksums of all of them, and then of each
    /// the sequence of its last change, the low half first.
    ///
    /// # Errors
    /// As [`Self::stage_write`].
    ///
    /// # Panics
    /// As [`Self::stage_write`], and if the record has a place in the order.
    pub fn stage_push(&mut self, record: &WriteRecord, words: &[U32], data: &[u8]) -> Result<(), StageError> {
        self.append_push(&on_drive(RecordKind::Push, record), record, words, data)
    }

    /// Appends a block that a learner lacks and whose content is lost: reads of it shall fail as they do where it was lost.
    /// `words` has the checksum of what it held, and the sequence of its last change.
    ///
    /// # Errors
    /// As [`Self::stage_write`].
    ///
    /// # Panics
    /// If the record is about more than one block, or has a place in the order.
    pub fn stage_damaged(&mut self, record: &WriteRecord, words: &[U32; 3]) -> Result<(), StageError> {
        let fillers = [[0xa5; BLOCK_BYTES], [0x5a; BLOCK_BYTES]];
        let never_verifies = fillers.iter().find(|filler| crc32c(&filler[..]) != words[0].get());
        let data = never_verifies.expect("two blocks that differ in this way have different checksums");
        let damaged = Record { flags: RECORD_IS_DAMAGED, ..on_drive(RecordKind::Push, record) };
        self.append_push(&damaged, record, words, data)
    }

    fn append_push(
        &mut self,
        on_drive: &Record,
        record: &WriteRecord,
        words: &[U32],
        data: &[u8],
    ) -> Result<(), StageError> {
        let count = usize::from(record.block_count);
        assert!(count > 0, "a push is of some blocks");
        assert_eq!(data.len(), count * BLOCK_BYTES, "data is whole blocks");
        assert_eq!(words.len(), RecordKind::Push.tail_words(record.block_count), "so many words a block");
        assert_eq!(record.sequence, Sequence(0), "what is pushed has no place in the order");
        self.check_space(record)?;
        let segments = &self.contents.segments;
        self.log.stage(RecordKind::Push, on_drive, (words, data), record.token, segments).map(|_| ())
    }

    fn check_space(&self, record: &WriteRecord) -> Result<(), StageError> {
        self.check_works()?;
        let space = Space::of(&self.contents, &self.log);
        // What makes members agree waits: its primary goes on without a member that takes nothing for long.
        let can_do_without = matches!(record.role, Role::Primary | Role::Recovery);
        let has_room = !(can_do_without && self.is_blocked())
            && space.has_room(record.role, u64::from(record.block_count))
            && (space.has_room_for_object(record.role) || self.contents.index.get(&record.key).is_some());
        if has_room { Ok(()) } else { Err(StageError::Full) }
    }

    /// Appends a zeroing to the open batch: the blocks read as zeros and their space is freed. A full OSD
    /// takes it too.
    ///
    /// # Errors
    /// When the OSD is busy or has failed.
    pub fn stage_zero(&mut self, record: &WriteRecord) -> Result<(), StageError> {
        self.stage_small(&on_drive(RecordKind::Zero, record), RecordKind::Zero, record.token)
    }

    /// Appends blocks of a layer that read as zeros, whatever lies beneath it. They take no room: a full OSD takes them too, if it
    /// has the object.
    ///
    /// # Errors
    /// When the OSD takes no more objects for this role, is busy, or has failed.
    pub fn stage_hole(&mut self, record: &WriteRecord) -> Result<(), StageError> {
        self.check_works()?;
        let is_there = self.contents.index.get(&record.key).is_some();
        if !is_there && !Space::of(&self.contents, &self.log).has_room_for_object(record.role) {
            return Err(StageError::Full);
        }
        self.stage_small(&on_drive(RecordKind::Hole, record), RecordKind::Hole, record.token)
    }

    /// The same of blocks that a learner lacked, out of order. They last changed at that sequence.
    ///
    /// # Errors
    /// As [`Self::stage_hole`].
    ///
    /// # Panics
    /// If the record has a place in the order.
    pub fn stage_pushed_hole(&mut self, record: &WriteRecord, changed: Sequence) -> Result<(), StageError> {
        assert_eq!(record.sequence, Sequence(0), "what is pushed has no place in the order");
        self.stage_hole(&WriteRecord { origin: changed.0, ..*record })
    }

    /// Appends a mark: a place in a group's order without data. `modulus` is the group's. With [`RecordKind::Join`] the
    /// group's log begins anew, because this member is catching up: until the next [`RecordKind::Mark`] or
    /// [`Self::stage_whole`], [`Self::pg_is_incomplete`].
    ///
    /// # Errors
    /// When the OSD is busy or has failed.
    ///
    /// # Panics
    /// If it is of another kind, or the modulus larger than any pool's.
    pub fn stage_mark(
        &mut self,
        kind: RecordKind,
        pg: PgId,
        modulus: u32,
        epoch: Epoch,
        sequence: Sequence,
        token: u64,
    ) -> Result<(), StageError> {
        assert!(matches!(kind, RecordKind::Mark | RecordKind::Join), "{kind:?} is no mark");
        self.stage_place(kind, pg, modulus, epoch, sequence, token)
    }

    /// Appends the word that a group is split: from here on it has the objects that are its own by `modulus`, twice
    /// what it was before. The others are those of [`PgId::child`], which begins with a copy of the log. Nothing of that
    /// one may have been staged before, and nothing of an object by the name of its former group after.
    ///
    /// # Errors
    /// When the OSD is busy or has failed.
    ///
    /// # Panics
    /// If the modulus is odd, or larger than any pool's.
    pub fn stage_split(&mut self, pg: PgId, modulus: u32, token: u64) -> Result<(), StageError> {
        assert!(modulus.is_multiple_of(2) && pg.index < modulus / 2, "{pg} does not split to {modulus}");
        self.stage_place(RecordKind::Split, pg, modulus, Epoch(0), Sequence(0), token)
    }

    /// Appends the word that this member has caught up: its log tells what it has from here on.
    ///
    /// # Errors
    /// When the OSD is busy or has failed.
    pub fn stage_whole(&mut self, pg: PgId, epoch: Epoch, token: u64) -> Result<(), StageError> {
        self.stage_place(RecordKind::Mark, pg, 0, epoch, Sequence(0), token)
    }

    /// Appends the word that this member leaves a group, or finds that what it has is of another order than its primary's: its
    /// log begins anew, and it has nothing for sure any more. [`Self::pg_is_incomplete`] as after a join.
    ///
    /// # Errors
    /// When the OSD is busy or has failed.
    pub fn stage_left(&mut self, pg: PgId, epoch: Epoch, token: u64) -> Result<(), StageError> {
        self.stage_place(RecordKind::Join, pg, 0, epoch, Sequence(0), token)
    }

    /// Appends the word that this member, which is catching up, has all that its group's primary has of the objects up to
    /// this one.
    ///
    /// # Errors
    /// When the OSD is busy or has failed.
    pub fn stage_reached(&mut self, key: ObjectKey, token: u64) -> Result<(), StageError> {
        let kind = RecordKind::Reached;
        self.stage_small(&Record::new(kind, key, 0, 0), kind, token)
    }

    /// Appends the word that nothing of a pool is needed any more: the logs of its groups go. Nothing of it may be staged, and
    /// no object of it be there: [`Self::has_objects_of`].
    ///
    /// # Errors
    /// When the OSD is busy or has failed.
    ///
    /// # Panics
    /// If an object of the pool is there.
    pub fn stage_forget(&mut self, pool: PoolId, token: u64) -> Result<(), StageError> {
        assert!(!self.has_objects_of(pool), "nothing that has objects is forgotten");
        let (kind, pg) = (RecordKind::Forget, PgId { pool, index: 0 });
        self.stage_small(&Record::new(kind, ObjectKey { pg, ..ObjectKey::default() }, 0, 0), kind, token)
    }

    /// Appends an entry to a group's log, of a write whose content is or comes here by other records.
    ///
    /// # Errors
    /// When the OSD is busy or has failed.
    pub fn stage_entry(&mut self, record: &WriteRecord) -> Result<(), StageError> {
        self.stage_small(&on_drive(RecordKind::Entry, record), RecordKind::Entry, record.token)
    }

    fn stage_place(
        &mut self,
        kind: RecordKind,
        pg: PgId,
        modulus: u32,
        epoch: Epoch,
        sequence: Sequence,
        token: u64,
    ) -> Result<(), StageError> {
        assert!(modulus <= GROUP_MODULUS_MAX, "no pool has {modulus} groups");
        let key = ObjectKey { pg, object: modulus, ..ObjectKey::default() };
        let place =
            Record { epoch: epoch.0.into(), sequence: sequence.0.into(), ..Record::new(kind, key, 0, 0) };
        self.stage_small(&place, kind, token)
    }

    fn stage_small(&mut self, record: &Record, kind: RecordKind, token: u64) -> Result<(), StageError> {
        self.check_works()?;
        self.log.stage(kind, record, (&[], &[]), token, &self.contents.segments).map(|_| ())
    }

    fn check_works(&self) -> Result<(), StageError> {
        self.failure().map_or(Ok(()), |reason| Err(StageError::Failed(reason.to_owned())))
    }
}

fn on_drive(kind: RecordKind, record: &WriteRecord) -> Record {
    Record {
        epoch: record.epoch.0.into(),
        sequence: record.sequence.0.into(),
        ..Record::new(kind, record.key, record.first_block, record.block_count).with_origin(record.origin)
    }
}
