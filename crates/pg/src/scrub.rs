//! Scrub: looking for damage before somebody needs the data.
//!
//! The primary goes through the objects of a group, one check of a run of blocks after the other. A *light* scrub
//! compares what the indexes of the members in sync say of an object: which blocks there are, and their checksums. A
//! *deep* one also lets every member read the blocks from its drive, verify them, and compares a second checksum of
//! their bytes. A check is an operation on its blocks: it waits for writes before it and holds back those behind it, so
//! members that agree give the same answer.
//!
//! What differs is narrowed down to a block. A block that does not verify at some member is written anew
//! ([`crate::mend`]); where indexes differ, what most members hold is taken for right, and the primary's among equals.
//!
//! One scrub at a time, one check at a time, and a pause after each: nine times as long as the check took while clients
//! are served, and never more than [`BYTES_PER_SECOND_MAX`].

use crate::io::Io;
use crate::mend::MendReason;
use crate::milestone::Milestone;
use crate::operation::{OperationId, OperationKind, OperationState, Origin};
use crate::osd::{Osd, Peer};
use crate::recovery::{mixed, with_block};
use base::{
    BLOCK_BYTES, Epoch, Instant, LinkId, OBJECT_BLOCKS, ObjectKey, OsdId, PgId, VolumeId, crc32c, crc64,
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use wire::{CHECK_BLOCKS_MAX, Findings, Inquiry, Objects, encode};

/// What a scrub reads of one drive at most.
pub const BYTES_PER_SECOND_MAX: u64 = 100_000_000;
/// How long a member may take to answer before the scrub is given up.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// How much longer than a check the pause behind it is while clients are served.
const PAUSE_FACTOR_BUSY: u32 = 9;
/// Into how many parts a run of blocks on which members differ is divided to find where.
const PARTS: u16 = 16;
/// Groups that may wait for their scrub.
const QUEUE_MAX: usize = 4096;

/// What a scrub found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScrubReport {
    /// The group.
    pub pg: PgId,
    /// Whether drives were read.
    pub is_deep: bool,
    /// Objects that were looked at.
    pub objects: u64,
    /// Bytes that were read of each member's drive.
    pub bytes: u64,
    /// Blocks that did not verify or differed.
    pub found: u64,
}

/// A run of blocks to be checked.
#[derive(Clone, Copy, Debug)]
struct Run {
    key: ObjectKey,
    first_block: u16,
    block_count: u16,
    is_deep: bool,
}

/// A check under way.
#[derive(Debug)]
struct Checking {
    id: OperationId,
    run: Run,
    since: Instant,
    awaited: Vec<OsdId>,
    /// This OSD's and the others' answers.
    findings: BTreeMap<OsdId, Findings>,
}

/// Whose objects are being listed, and behind which one it goes on.
#[derive(Debug)]
struct Listing {
    left: Vec<OsdId>,
    after: Option<(VolumeId, u32)>,
    since: Instant,
}

/// See the module's documentation.
#[derive(Debug)]
pub(crate) struct Scrub {
    group: u32,
    epoch: Epoch,
    listing: Option<Listing>,
    objects: BTreeSet<(VolumeId, u32)>,
    /// Runs of the present object, the next one last.
    runs: Vec<Run>,
    checking: Option<Checking>,
    report: ScrubReport,
}

/// The scrubs of an OSD, as primary.
#[derive(Debug, Default)]
pub(crate) struct Scrubs {
    queue: VecDeque<(PgId, bool)>,
    current: Option<Scrub>,
    /// When the next check is due.
    pub(crate) next_at: Option<Instant>,
    reports: Vec<ScrubReport>,
}

impl Scrubs {
    pub(crate) fn is_idle(&self) -> bool {
        self.current.is_none() && self.queue.is_empty()
    }
}

impl Osd {
    /// Scrubs a group, when those asked for before it are done. `false` if this OSD does not lead it, or too many wait.
    pub fn begin_scrub(&mut self, pg: PgId, is_deep: bool) -> bool {
        let is_led = self.group_index.get(&pg).is_some_and(|index| self.groups[*index as usize].is_active());
        if !is_led || self.scrubs.queue.len() >= QUEUE_MAX {
            return false;
        }
        let current = self.scrubs.current.as_ref().map(|scrub| (scrub.report.pg, scrub.report.is_deep));
        if current.is_some_and(|(current, current_is_deep)| current == pg && current_is_deep >= is_deep) {
            return true;
        }
        match self.scrubs.queue.iter_mut().find(|(queued, _)| *queued == pg) {
            Some((_, deep)) => *deep |= is_deep,
            None => self.scrubs.queue.push_back((pg, is_deep)),
        }
        self.next_tick = self.now;
        true
    }

    /// What scrubs found that ended since the last call.
    pub fn take_scrub_reports(&mut self) -> Vec<ScrubReport> {
        std::mem::take(&mut self.scrubs.reports)
    }

    /// Whether no scrub is under way or waits.
    #[must_use]
    pub fn scrub_is_over(&self) -> bool {
        self.scrubs.is_idle()
    }

    /// The group that is being scrubbed, whether deeply, and how many objects are still to be looked at.
    #[must_use]
    pub fn scrub_progress(&self) -> Option<(PgId, bool, u64)> {
        let scrub = self.scrubs.current.as_ref()?;
        Some((scrub.report.pg, scrub.report.is_deep, scrub.objects.len() as u64))
    }

    /// Takes the next step of the scrub, if it is due.
    pub(crate) fn advance_scrub(&mut self, io: &mut impl Io) {
        if self.scrubs.current.is_none() {
            self.next_scrub(io);
        }
        let Some(scrub) = &mut self.scrubs.current else {
            self.scrubs.next_at = None;
            return;
        };
        let group = &self.groups[scrub.group as usize];
        let is_over = !group.is_active() || group.epoch != scrub.epoch;
        let listed = scrub.listing.as_ref().map(|listing| listing.since);
        let asked = scrub.checking.as_ref().map(|checking| checking.since).or(listed);
        if is_over || asked.is_some_and(|since| self.now.since(since) >= ANSWER_MAX) {
            return self.give_up_scrub(io);
        }
        if asked.is_some() || self.scrubs.next_at.is_some_and(|at| self.now < at) {
            return;
        }
        self.check_next(io);
    }

    fn next_scrub(&mut self, io: &mut impl Io) {
        while let Some((pg, is_deep)) = self.scrubs.queue.pop_front() {
            let Some(&index) = self.group_index.get(&pg) else { continue };
            let group = &self.groups[index as usize];
            if !group.is_active() {
                continue;
            }
            let own = self.store.objects().filter(|key| key.pg == pg);
            let scrub = Scrub {
                group: index,
                epoch: group.epoch,
                listing: None,
                objects: own.map(|key| (key.volume, key.object)).collect(),
                runs: Vec::new(),
                checking: None,
                report: ScrubReport { pg, is_deep, objects: 0, bytes: 0, found: 0 },
            };
            let left: Vec<OsdId> = group.replicas(self.id).collect();
            self.scrubs.current = Some(scrub);
            return self.list_next(Listing { left, after: None, since: self.now }, io);
        }
    }

    /// Asks a member for the objects it has: it may have some that this OSD has not.
    fn list_next(&mut self, listing: Listing, io: &mut impl Io) {
        let Some(scrub) = &mut self.scrubs.current else { return };
        let Some(osd) = listing.left.last().copied() else {
            scrub.listing = None;
            return;
        };
        let (pg, epoch) = (scrub.report.pg, scrub.epoch);
        let after = listing.after;
        scrub.listing = Some(listing);
        if let Some(link) = self.ready_link(osd) {
            io.send(link, &encode::list_objects(pg, epoch, after));
        }
    }

    /// A member's answer to that. `false` if it is for somebody else.
    pub(crate) fn scrub_lists(&mut self, osd: OsdId, objects: &Objects<'_>, io: &mut impl Io) -> bool {
        let now = self.now;
        let Some(scrub) = &mut self.scrubs.current else { return false };
        let is_meant = scrub.report.pg == objects.pg
            && scrub.epoch == objects.epoch
            && scrub.listing.as_ref().is_some_and(|listing| listing.left.last() == Some(&osd));
        if !is_meant {
            return false;
        }
        let mut listing = scrub.listing.take().expect("it was just looked at");
        scrub.objects.extend(objects.entries().map(|entry| (entry.volume, entry.object)));
        listing.since = now;
        listing.after = objects.entries().last().map(|entry| (entry.volume, entry.object));
        if objects.is_last {
            listing.left.pop();
            listing.after = None;
        }
        self.list_next(listing, io);
        self.advance_scrub(io);
        true
    }

    fn give_up_scrub(&mut self, io: &mut impl Io) {
        let Some(scrub) = self.scrubs.current.take() else { return };
        if let Some(checking) = scrub.checking {
            self.end_check(checking.id, scrub.group, io);
        }
    }

    fn check_next(&mut self, io: &mut impl Io) {
        // Until the answers are there, ticks are enough.
        self.scrubs.next_at = None;
        let Some(scrub) = &mut self.scrubs.current else { return };
        if scrub.runs.is_empty()
            && let Some((volume, object)) = scrub.objects.pop_first()
        {
            scrub.report.objects += 1;
            let key = ObjectKey { pg: scrub.report.pg, volume, object };
            let all = Run { key, first_block: 0, block_count: OBJECT_BLOCKS as u16, is_deep: false };
            if scrub.report.is_deep {
                let starts = (0..OBJECT_BLOCKS as u16).step_by(usize::from(CHECK_BLOCKS_MAX)).rev();
                let deep =
                    |first_block| Run { first_block, block_count: CHECK_BLOCKS_MAX, is_deep: true, ..all };
                scrub.runs.extend(starts.map(deep));
            }
            scrub.runs.push(all);
        }
        let Some(run) = scrub.runs.pop() else {
            let scrub = self.scrubs.current.take().expect("it was just looked at");
            self.scrubs.reports.push(scrub.report);
            self.next_tick = self.now;
            return;
        };
        let index = scrub.group;
        let waiting = self.groups[index as usize].waiting.len();
        let has_conflict = self.has_conflict(index, &run.key, run.first_block, run.block_count, waiting);
        let (id, operation) = self.operations.add();
        operation.kind = OperationKind::Check;
        operation.origin = Origin::Scrub;
        operation.group = index;
        operation.key = run.key;
        operation.first_block = run.first_block;
        operation.block_count = run.block_count;
        let checking = Checking { id, run, since: self.now, awaited: Vec::new(), findings: BTreeMap::new() };
        if let Some(scrub) = &mut self.scrubs.current {
            scrub.checking = Some(checking);
        }
        if has_conflict {
            self.groups[index as usize].waiting.push_back(id);
        } else {
            self.start_check(id, io);
        }
    }

    /// Its blocks are free: asks everybody, this OSD too.
    pub(crate) fn start_check(&mut self, id: OperationId, io: &mut impl Io) {
        let now = self.now;
        let group = self.operations.live(id).group;
        self.operations.live(id).state = OperationState::Reading;
        self.groups[group as usize].in_flight.push_back(id);
        let current = self.scrubs.current.as_mut().and_then(|scrub| scrub.checking.as_mut());
        let Some(checking) = current.filter(|checking| checking.id == id) else {
            // The scrub was given up while this waited.
            return self.end_check(id, group, io);
        };
        let run = checking.run;
        checking.since = now;
        let members: Vec<OsdId> = self.groups[group as usize].replicas(self.id).collect();
        checking.awaited.clone_from(&members);
        checking.awaited.push(self.id);
        let inquiry = Inquiry {
            request: id.number(),
            key: run.key,
            epoch: self.groups[group as usize].epoch,
            first_block: run.first_block,
            block_count: run.block_count,
        };
        for osd in members {
            if let Some(link) = self.ready_link(osd) {
                io.send(link, &encode::check(&inquiry, run.is_deep));
            }
        }
        match run.is_deep {
            true => self.read_for_check(id, io),
            false => {
                let findings = self.look_into_index(&inquiry);
                self.check_was_answered(self.id, id.number(), findings, io);
            }
        }
    }

    /// What the index says of blocks.
    fn look_into_index(&self, inquiry: &Inquiry) -> Findings {
        let blocks = inquiry.first_block..inquiry.first_block + inquiry.block_count;
        let mut digest = 0;
        self.store.for_each_block(&inquiry.key, |block, crc32c| {
            if blocks.contains(&block) {
                digest = with_block(digest, block, crc32c);
            }
        });
        Findings { damaged: 0, digest: [digest, 0] }
    }

    fn read_for_check(&mut self, id: OperationId, io: &mut impl Io) {
        let operation = self.operations.live(id);
        let (key, first_block, block_count) = (operation.key, operation.first_block, operation.block_count);
        self.look_up(id, &key, first_block, block_count);
        if self.operations.live(id).parts.iter().any(|part| part.location.is_some()) {
            self.read_parts(id, io);
        } else {
            self.check_was_read(id, io);
        }
    }

    /// The drive answered what is checked: for this OSD's own scrub, or for that of another primary.
    pub(crate) fn check_was_read(&mut self, id: OperationId, io: &mut impl Io) {
        let operation = self.operations.live(id);
        let mut findings = Findings::default();
        for part in operation.parts.iter().filter(|part| part.location.is_some()) {
            for offset in 0..usize::from(part.block_count) {
                let block = part.first_block + offset as u16;
                let number = block - operation.first_block;
                let expected = operation.checksums[usize::from(number)].get();
                let range = offset * BLOCK_BYTES..(offset + 1) * BLOCK_BYTES;
                match part.buffer.as_ref().map(|buffer| &buffer.bytes()[range]) {
                    Some(bytes) if crc32c(bytes) == expected => {
                        let [index, data] = &mut findings.digest;
                        *index = with_block(*index, block, expected);
                        *data = mixed(*data, crc64(bytes));
                    }
                    _ => findings.damaged |= 1 << number,
                }
            }
        }
        let (origin, key, epoch) = (operation.origin, operation.key, operation.epoch);
        let (first_block, block_count) = (operation.first_block, operation.block_count);
        self.release_parts(id);
        self.damage.found += u64::from(findings.damaged.count_ones());
        if findings.damaged != 0 {
            self.note(format!("damaged data: a scrub found it in {key} on {}", self.id));
        }
        match origin {
            Origin::Peer { link, request } => {
                self.forget_operation(id);
                let inquiry = Inquiry { request, key, epoch, first_block, block_count };
                let mut bytes = Vec::new();
                encode::checked(&mut bytes, &inquiry, &findings);
                io.send(link, &bytes);
            }
            _ => self.check_was_answered(self.id, id.number(), findings, io),
        }
    }

    /// A primary asks what blocks hold here, in short.
    pub(crate) fn handle_check(&mut self, link: LinkId, inquiry: &Inquiry, is_deep: bool, io: &mut impl Io) {
        let Some(&group) = self.group_index.get(&inquiry.key.pg) else { return };
        if self.groups[group as usize].epoch != inquiry.epoch {
            // The primary gives the scrub up when its epoch ends.
            return;
        }
        if !is_deep {
            let mut bytes = Vec::new();
            encode::checked(&mut bytes, inquiry, &self.look_into_index(inquiry));
            return io.send(link, &bytes);
        }
        let id = self.add_inquiry(OperationKind::Check, link, group, inquiry);
        self.read_for_check(id, io);
    }

    /// A member's answer to a check.
    pub(crate) fn handle_checked(
        &mut self,
        link: LinkId,
        inquiry: &Inquiry,
        findings: Findings,
        io: &mut impl Io,
    ) {
        if let Some(Peer::Osd(peer)) = self.peers.get(&link) {
            let osd = peer.osd;
            self.check_was_answered(osd, inquiry.request, findings, io);
        }
    }

    fn check_was_answered(&mut self, osd: OsdId, request: u64, findings: Findings, io: &mut impl Io) {
        let now = self.now;
        let is_busy = now.since(self.active_at) < Duration::from_secs(1);
        let Some(scrub) = &mut self.scrubs.current else { return };
        let Some(checking) = scrub.checking.as_mut().filter(|checking| checking.id.number() == request)
        else {
            return;
        };
        let awaited = checking.awaited.len();
        checking.awaited.retain(|awaited| *awaited != osd);
        if checking.awaited.len() < awaited {
            checking.findings.insert(osd, findings);
        }
        if !checking.awaited.is_empty() {
            return;
        }
        let checking = scrub.checking.take().expect("it was just looked at");
        let bytes =
            if checking.run.is_deep { u64::from(checking.run.block_count) * BLOCK_BYTES as u64 } else { 0 };
        scrub.report.bytes += bytes;
        let index = scrub.group;
        let took = now.since(checking.since);
        let pause = if is_busy { took * PAUSE_FACTOR_BUSY } else { took / 4 };
        let least = Duration::from_nanos(bytes * 1_000_000_000 / BYTES_PER_SECOND_MAX);
        self.scrubs.next_at = Some(now + pause.max(least));
        let found = self.judge(index, &checking, io);
        if let Some(scrub) = &mut self.scrubs.current {
            scrub.report.found += found;
        }
        self.end_check(checking.id, index, io);
    }

    fn end_check(&mut self, id: OperationId, group: u32, io: &mut impl Io) {
        let state = &mut self.groups[group as usize];
        state.in_flight.retain(|other| *other != id);
        state.waiting.retain(|other| *other != id);
        let Some(operation) = self.operations.get_mut(id) else { return };
        if operation.parts_awaited > 0 {
            operation.state = OperationState::Abandoned;
        } else {
            self.forget_operation(id);
        }
        self.start_waiting(group, io);
    }

    /// Has what does not verify written anew, and looks closer where members differ. Answers how many blocks were found.
    fn judge(&mut self, index: u32, checking: &Checking, io: &mut impl Io) -> u64 {
        let Run { key, first_block, block_count, .. } = checking.run;
        let own = checking.findings.get(&self.id).copied().unwrap_or_default();
        let damaged = checking.findings.values().fold(0, |all, findings| all | findings.damaged);
        if damaged != 0 {
            self.milestones.pass(Milestone::ScrubDamaged);
            for number in (0..block_count.min(CHECK_BLOCKS_MAX)).filter(|number| damaged >> number & 1 != 0) {
                let is_own = own.damaged >> number & 1 != 0;
                let reason = if is_own { MendReason::Damaged } else { MendReason::OtherDamaged };
                self.mend(index, key, first_block + number, reason, io);
            }
            return u64::from(damaged.count_ones());
        }
        if checking.findings.values().all(|findings| findings.digest == own.digest) {
            return 0;
        }
        if block_count > 1 {
            let part = (block_count / PARTS).max(1);
            let starts = (first_block..first_block + block_count).step_by(usize::from(part));
            if let Some(scrub) = &mut self.scrubs.current {
                let run = |first_block| Run { first_block, block_count: part, ..checking.run };
                scrub.runs.extend(starts.map(run));
            }
            return 0;
        }
        self.milestones.pass(Milestone::ScrubDiffers);
        let votes = |digest: [u64; 2]| {
            checking.findings.values().filter(|findings| findings.digest == digest).count()
        };
        let winner = checking.findings.iter().max_by_key(|(osd, findings)| {
            (votes(findings.digest), findings.digest == own.digest, std::cmp::Reverse(**osd))
        });
        let Some((winner, findings)) = winner else { return 0 };
        let reason = match findings.digest == own.digest {
            true => MendReason::OtherDamaged,
            false => MendReason::Outvoted(*winner),
        };
        self.note(format!(
            "members differ in block {first_block} of {key}; what {winner} holds is taken for right"
        ));
        self.mend(index, key, first_block, reason, io);
        1
    }
}
