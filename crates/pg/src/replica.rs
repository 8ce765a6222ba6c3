//! The other end of replication: applying what a primary ordered, and what primaries hear back.

use crate::counting::Replicated;
use crate::group::GroupState;
use crate::io::Io;
use crate::milestone::Milestone;
use crate::osd::{Awaited, Handled, LinkError, Osd, StagedRecord};
use crate::peering::CLAIM_PAUSE_LONG;
use crate::recovery::Received;
use crate::request::payload_verifies;
use crate::sabotage::Sabotage;
use base::log_entry::REPAIR;
use base::{Epoch, LinkId, LogEntry, ObjectKey, PgId, Sequence};
use store::{StageError, WriteRecord};
use wire::{Checksums, Message, Replicate, Status, encode};
use zerocopy::little_endian::U32;

/// What a learner is told that blocks hold.
enum Pushed<'a> {
    Data(Checksums<'a>, &'a [u8]),
    Zeros,
    /// Nobody knows any more; this is its checksum.
    Lost(U32),
}

impl Osd {
    pub(crate) fn handle_osd_message(
        &mut self,
        link: LinkId,
        message: Message<'_>,
        io: &mut impl Io,
    ) -> Result<Handled, LinkError> {
        match message {
            Message::ReplicateWrite(replicate, checksums, data) => {
                Ok(self.apply_write(link, &replicate, Some((checksums, data)), io))
            }
            Message::ReplicateZero(replicate) => Ok(self.apply_write(link, &replicate, None, io)),
            Message::Activate { pg, epoch, mark, join } => Ok(self.activate(link, pg, epoch, mark, join, io)),
            Message::Whole { pg, epoch } => Ok(self.apply_whole(link, pg, epoch, io)),
            Message::PushEntry { pg, epoch, entry } => Ok(self.apply_entry(link, pg, epoch, &entry, io)),
            Message::PushWrite(push, checksums, data) => {
                Ok(self.apply_push(link, &push, Pushed::Data(checksums, data), io))
            }
            Message::PushZero(push) => Ok(self.apply_push(link, &push, Pushed::Zeros, io)),
            Message::PushLost(push, checksum) => Ok(self.apply_push(link, &push, Pushed::Lost(checksum), io)),
            Message::ListObjects { pg, epoch, after } => {
                self.list_objects(link, pg, epoch, after, io);
                Ok(Handled::Done)
            }
            Message::Objects(objects) => {
                self.handle_objects(link, &objects, io);
                Ok(Handled::Done)
            }
            Message::ListBlocks { key, epoch } => {
                self.list_blocks(link, key, epoch, io);
                Ok(Handled::Done)
            }
            Message::Blocks(blocks) => {
                self.handle_blocks(link, &blocks, io);
                Ok(Handled::Done)
            }
            Message::Fetch(inquiry) => {
                self.handle_fetch(link, &inquiry, io);
                Ok(Handled::Done)
            }
            Message::Fetched(inquiry, status, checksums, data) => {
                self.handle_fetched(link, &inquiry, status, checksums, data, io);
                Ok(Handled::Done)
            }
            Message::Check { inquiry, is_deep } => {
                self.handle_check(link, &inquiry, is_deep, io);
                Ok(Handled::Done)
            }
            Message::Checked(inquiry, findings) => {
                self.handle_checked(link, &inquiry, findings, io);
                Ok(Handled::Done)
            }
            Message::ReplicateAck { through, is_full } => {
                self.handle_ack(link, through, is_full, io)?;
                Ok(Handled::Done)
            }
            Message::ReplicateRefused { ordinal, status, epoch } => {
                self.handle_refusal(link, ordinal, status, epoch, io);
                Ok(Handled::Done)
            }
            Message::Query { pg, modulus, epoch } => {
                self.handle_query(link, pg, modulus, epoch, io);
                Ok(Handled::Done)
            }
            Message::Serves { pg, epoch } => {
                self.epoch_serves(pg, epoch);
                Ok(Handled::Done)
            }
            Message::Position(position) => {
                self.handle_position(link, &position, io);
                Ok(Handled::Done)
            }
            _ => Err(LinkError::OutOfTurn("an OSD sent a message of clients")),
        }
    }

    /// The group of a replicated message, if it is the next one of an epoch this replica is in.
    fn expected_group(&self, replicate: &Replicate) -> Result<u32, (Status, Epoch)> {
        let Some(&index) = self.group_index.get(&replicate.key.pg) else {
            return Err((Status::NotActive, Epoch(0)));
        };
        let group = &self.groups[index as usize];
        match group.state {
            GroupState::Replica { expected: Some(expected) }
            | GroupState::Claiming { expected: Some(expected) }
                if replicate.epoch == group.epoch && replicate.sequence == expected =>
            {
                Ok(index)
            }
            _ if replicate.epoch < group.epoch && self.sabotage == Some(Sabotage::ForgetFence) => Ok(index),
            _ if replicate.epoch < group.epoch => Err((Status::StaleEpoch, group.epoch)),
            _ => Err((Status::NotActive, group.epoch)),
        }
    }

    fn replica_record(&self, replicate: &Replicate) -> WriteRecord {
        WriteRecord {
            key: replicate.key,
            epoch: self.recorded_epoch(replicate.epoch),
            sequence: replicate.sequence,
            origin: replicate.origin,
            first_block: replicate.first_block,
            block_count: replicate.block_count,
            token: self.next_staged_token(),
            // What makes members agree is taken by one that takes no other writes any more.
            role: match replicate.origin & REPAIR {
                0 => store::Role::Replica,
                _ => store::Role::Housekeeping,
            },
        }
    }

    /// A write that the primary ordered, or without a payload a zeroing.
    fn apply_write(
        &mut self,
        link: LinkId,
        replicate: &Replicate,
        payload: Option<(Checksums<'_>, &[u8])>,
        io: &mut impl Io,
    ) -> Handled {
        let verifies = payload.is_none_or(|(checksums, data)| payload_verifies(0, checksums, data));
        let staged = match self.expected_group(replicate) {
            Ok(_) if !verifies => Err((Status::CorruptPayload, replicate.epoch)),
            Ok(group) => {
                let record = self.replica_record(replicate);
                let staged = match payload {
                    Some((checksums, data)) => self.store.stage_write(&record, checksums, data).map(|_| ()),
                    None => self.store.stage_zero(&record),
                };
                Ok((group, staged))
            }
            Err(refusal) => Err(refusal),
        };
        let bytes = payload.map_or(0, |(_, data)| data.len() as u32);
        let write = Replicated { bytes, at: self.now };
        self.applied(link, Some(replicate.sequence), Some(write), staged, io)
    }

    /// What this learner lacks. It is in the primary's order where it stands in the stream, but has no sequence.
    fn apply_push(
        &mut self,
        link: LinkId,
        push: &Replicate,
        pushed: Pushed<'_>,
        io: &mut impl Io,
    ) -> Handled {
        let record =
            WriteRecord { sequence: Sequence(0), role: store::Role::Recovery, ..self.replica_record(push) };
        let group = self.joined_group(push.key.pg, push.epoch);
        let staged = match (group, pushed) {
            (None, _) => Err((Status::NotActive, push.epoch)),
            (Some(_), Pushed::Data(checksums, data)) if !payload_verifies(0, checksums, data) => {
                Err((Status::CorruptPayload, push.epoch))
            }
            (Some(group), Pushed::Data(checksums, data)) => {
                Ok((group, self.store.stage_write(&record, checksums, data).map(|_| ())))
            }
            (Some(group), Pushed::Zeros) => Ok((group, self.store.stage_zero(&record))),
            (Some(group), Pushed::Lost(checksum)) => Ok((group, self.store.stage_damaged(&record, checksum))),
        };
        self.applied(link, None, None, staged, io)
    }

    /// An entry of the log from before this learner's join.
    fn apply_entry(
        &mut self,
        link: LinkId,
        pg: PgId,
        epoch: Epoch,
        entry: &LogEntry,
        io: &mut impl Io,
    ) -> Handled {
        let record = WriteRecord {
            key: ObjectKey { pg, volume: entry.volume, object: entry.object },
            epoch: entry.epoch,
            sequence: entry.sequence,
            origin: entry.origin,
            first_block: entry.first_block,
            block_count: entry.block_count,
            token: self.next_staged_token(),
            role: store::Role::Housekeeping,
        };
        let staged = match self.joined_group(pg, epoch) {
            Some(group) => Ok((group, self.store.stage_entry(&record))),
            None => Err((Status::NotActive, epoch)),
        };
        self.applied(link, None, None, staged, io)
    }

    /// This learner has everything. That it has what it was pushed, of which no log tells, is told by this: should the end of
    /// what was sent to it ever be missing, this is missing too.
    fn apply_whole(&mut self, link: LinkId, pg: PgId, epoch: Epoch, io: &mut impl Io) -> Handled {
        let staged = match self.joined_group(pg, epoch) {
            Some(group) => Ok((group, self.store.stage_whole(pg, epoch, self.next_staged_token()))),
            None => Err((Status::NotActive, epoch)),
        };
        self.applied(link, None, None, staged, io)
    }

    /// The group of what a primary sends beside its order, if this OSD is in that epoch.
    fn joined_group(&self, pg: PgId, epoch: Epoch) -> Option<u32> {
        let index = *self.group_index.get(&pg)?;
        let group = &self.groups[index as usize];
        let is_joined = matches!(group.state, GroupState::Replica { expected: Some(_) });
        (group.epoch == epoch && is_joined).then_some(index)
    }

    /// The begin of an epoch: from its mark on, the primary's order is this replica's.
    fn activate(
        &mut self,
        link: LinkId,
        pg: PgId,
        epoch: Epoch,
        mark: Sequence,
        join: Option<Sequence>,
        io: &mut impl Io,
    ) -> Handled {
        let sender = self.osd_link_mut(link).map(|peer| peer.osd);
        let staged = match self.group_index.get(&pg).copied() {
            None => Err((Status::NotActive, Epoch(0))),
            Some(index) if self.groups[index as usize].epoch != epoch => {
                Err((Status::StaleEpoch, self.groups[index as usize].epoch))
            }
            Some(index) if !matches!(self.groups[index as usize].state, GroupState::Replica { .. }) => {
                Err((Status::NotActive, epoch))
            }
            // It left the group since it told that primary where it stands: it is to be asked anew.
            Some(index) if self.groups[index as usize].leader != sender => Err((Status::NotActive, epoch)),
            Some(index) => {
                let (token, modulus) = (self.next_staged_token(), self.groups[index as usize].modulus);
                let staged = if join.is_some() {
                    // What its log ended with when it started is no part of the one that begins now.
                    self.groups[index as usize].may_lack_tail = false;
                    self.store.stage_join(pg, modulus, epoch, mark, token)
                } else {
                    self.store.stage_mark(pg, modulus, epoch, mark, token)
                };
                Ok((index, staged))
            }
        };
        // The next sequence is the one behind the mark, or where a learner's stream begins.
        let last = join.map_or(mark, |from| Sequence(from.0.saturating_sub(1)));
        self.applied(link, Some(last), None, staged, io)
    }

    /// Every member has what was ordered before this epoch.
    fn epoch_serves(&mut self, pg: PgId, epoch: Epoch) {
        if let Some(index) = self.joined_group(pg, epoch) {
            self.groups[index as usize].may_lack_tail = false;
        }
    }

    /// What became of a replicated message. It counts, whether applied or refused, unless it must come again.
    fn applied(
        &mut self,
        link: LinkId,
        sequence: Option<Sequence>,
        write: Option<Replicated>,
        staged: Result<(u32, Result<(), StageError>), (Status, Epoch)>,
        io: &mut impl Io,
    ) -> Handled {
        if matches!(staged, Ok((_, Err(StageError::Busy)))) {
            return Handled::Stalled;
        }
        let Some(peer) = self.osd_link_mut(link) else { return Handled::Done };
        peer.received += 1;
        let ordinal = peer.received;
        let (status, epoch) = match staged {
            Ok((group, Ok(()))) => {
                if sequence.is_some() {
                    self.pace.client_came(self.now);
                }
                if let Some(sequence) = sequence
                    && let GroupState::Replica { expected } | GroupState::Claiming { expected } =
                        &mut self.groups[group as usize].state
                {
                    *expected = Some(sequence.next());
                }
                self.active_at = self.now;
                self.note_staged(StagedRecord::Replica { group, link, ordinal, write });
                return Handled::Done;
            }
            Ok((group, Err(StageError::Full))) => (Status::NoSpace, self.groups[group as usize].epoch),
            Ok((group, Err(_))) => (Status::DeviceFailed, self.groups[group as usize].epoch),
            Err(refusal) => refusal,
        };
        self.milestones.pass(Milestone::replica_refuses(status));
        if write.is_some() {
            self.count_replica_refused(status);
        }
        io.send(link, &encode::replicate_refused(ordinal, status, epoch));
        Handled::Done
    }

    /// A replica has everything up to a message on stable media.
    fn handle_ack(
        &mut self,
        link: LinkId,
        through: u64,
        is_full: bool,
        io: &mut impl Io,
    ) -> Result<(), LinkError> {
        let peer = self.osd_link_mut(link).expect("the caller looked");
        if through > peer.sent {
            return Err(LinkError::OutOfTurn("an acknowledgement of what was not sent"));
        }
        peer.is_full = is_full;
        while let Some(peer) = self.osd_link_mut(link) {
            let Some(awaited) = peer.outstanding.pop_front_if(|front| front.ordinal <= through) else {
                break;
            };
            match awaited.awaited {
                Awaited::Write(operation) => self.member_has(operation, io),
                Awaited::Learning { .. } => {}
                Awaited::Push { group, session, cost } => {
                    self.learner_has(group, session, Received::Push { cost }, io);
                }
                Awaited::Join { group, session } => self.learner_has(group, session, Received::Mark, io),
            }
        }
        // A group may wait for a learner's last acknowledgement to begin its epoch.
        for group in std::mem::take(&mut self.promotions) {
            self.advance_peering(group, io);
            let state = &self.groups[group as usize];
            if state.promoted.is_some() && !state.is_claiming() {
                self.promotions.push(group);
            }
        }
        Ok(())
    }

    /// A replica did not apply a message: the group begins anew, which brings the replica into line.
    fn handle_refusal(&mut self, link: LinkId, ordinal: u64, status: Status, epoch: Epoch, io: &mut impl Io) {
        let Some(peer) = self.osd_link_mut(link) else { return };
        let osd = peer.osd;
        let Ok(index) = peer.outstanding.binary_search_by_key(&ordinal, |outstanding| outstanding.ordinal)
        else {
            return;
        };
        let operation = match peer.outstanding.remove(index).expect("it was just found").awaited {
            Awaited::Write(operation) => operation,
            Awaited::Learning { group, session }
            | Awaited::Push { group, session, .. }
            | Awaited::Join { group, session } => {
                return self.learner_refused(group, session, osd, status);
            }
        };
        let Some(state) = self.operations.get(operation) else { return };
        let group = state.group;
        self.note(format!(
            "{osd} refused a write of pg {}: {status:?} ({epoch})",
            self.groups[group as usize].pg
        ));
        self.end_epoch(group, &format!("{osd} refused a write: {status:?}"), io);
        // What made it refuse may last: each claim is a commit of the registry.
        self.groups[group as usize].claim_after = self.now + CLAIM_PAUSE_LONG;
    }
}
