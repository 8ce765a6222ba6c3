//! Scrub: looking for damage before somebody needs the data.
//!
//! The primary goes through the objects of a group, one check of a run of blocks after the other. A *light* scrub
//! compares what the indexes of the members in sync say of an object: which blocks there are, and their checksums. A
//! *deep* one also lets every member read the blocks from its drive, verify them, and compares a hash of
//! their bytes under a key that is drawn for the check, which no client can have made contents for. A check is an operation on its blocks: it waits for writes before it and holds back those behind it, so
//! members that agree give the same answer.
//!
//! What differs is narrowed down to a block. A block that does not verify at some member is written anew
//! ([`super::mend`]); where indexes differ, what most members hold is taken for right, and the primary's among equals.
//!
//! One scrub at a time, one check at a time, and a pause after each: while clients are served so long that checks have their share of
//! the time ([`base::Profile`]), and never more than [`BYTES_PER_SECOND_MAX`].

use super::mend::{add_inquiry, inquiry_of};
use crate::context::{Context, Task};
use crate::epoch::differences::runs_alike;
use crate::group::obedience::may_inquire;
use crate::io::Io;
use crate::journal::Milestone;
use crate::operation::{MendReason, OperationId, OperationKind, OperationState, Purpose};
use crate::report::ScrubReport;
use base::hash::mix;
use base::{
    BLOCK_BYTES, BlockRange, Epoch, Instant, LayerId, LinkId, ObjectKey, OsdId, PgId, WorkClass, crc32c,
    keyed_hash,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use store::Store;
use wire::{CHECK_BLOCKS_MAX, Check, Checked, Findings, Inquiry, ListObjects, Objects};

/// What a scrub reads of one drive at most.
const BYTES_PER_SECOND_MAX: u64 = 100_000_000;
/// How long a member may take to answer before the scrub is given up.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// The longest pause for that: of a check that took longer a drive or a member did nothing for a while, which tells nothing of how
/// much clients notice.
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Clients are served if there was something of theirs to do so shortly before.
const BUSY_FOR: Duration = Duration::from_secs(1);
/// Into how many parts a run of blocks on which members differ is divided to find where.
const PARTS: u16 = 16;
/// Objects that members may list and this OSD has not: further ones are another scrub's.
const UNKNOWN_OBJECTS_MAX: usize = 1 << 16;
/// Groups that may wait for their scrub.
const QUEUE_MAX: usize = 4096;

/// A run of blocks to be checked.
#[derive(Clone, Copy, Debug)]
struct Run {
    range: BlockRange,
    is_deep: bool,
}

/// A check under way.
#[derive(Debug)]
struct Checking {
    id: OperationId,
    run: Run,
    since: Instant,
    awaited: Vec<OsdId>,
    /// Under which bytes are hashed.
    key: u64,
    /// This OSD's and the others' answers.
    findings: BTreeMap<OsdId, Findings>,
}

/// Whose objects are being listed, and behind which one it goes on.
#[derive(Debug)]
struct Listing {
    left: Vec<OsdId>,
    after: Option<(LayerId, u32)>,
    since: Instant,
}

/// See the module's documentation.
#[derive(Debug)]
struct Scrub {
    group: u32,
    epoch: Epoch,
    listing: Option<Listing>,
    objects: BTreeSet<(LayerId, u32)>,
    /// No more of them than that.
    objects_max: usize,
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

    /// Whether a scrub of the group that is as deep is under way.
    pub(crate) fn does(&self, pg: PgId, is_deep: bool) -> bool {
        let current = self.current.as_ref().map(|scrub| &scrub.report);
        current.is_some_and(|report| report.pg == pg && report.is_deep >= is_deep)
    }

    /// Scrubs a group that this OSD leads, when those asked for before it are done. `false` if too many wait.
    pub(crate) fn enqueue(&mut self, pg: PgId, is_deep: bool) -> bool {
        if self.queue.len() >= QUEUE_MAX {
            return false;
        }
        match self.queue.iter_mut().find(|(queued, _)| *queued == pg) {
            Some((_, deep)) => *deep |= is_deep,
            None => self.queue.push_back((pg, is_deep)),
        }
        true
    }

    /// What scrubs found that ended since the last call.
    pub(crate) fn take_reports(&mut self) -> Vec<ScrubReport> {
        std::mem::take(&mut self.reports)
    }

    /// The group that is being scrubbed, whether deeply, and how many objects are still to be looked at.
    pub(crate) fn progress(&self) -> Option<(PgId, bool, u64)> {
        let scrub = self.current.as_ref()?;
        Some((scrub.report.pg, scrub.report.is_deep, scrub.objects.len() as u64))
    }

    /// Takes the next step of the scrub, if it is due.
    pub(crate) fn advance(&mut self, cx: &mut Context<'_, impl Io>) {
        if self.current.is_none() {
            self.next_scrub(cx);
        }
        let Some(scrub) = &mut self.current else {
            self.next_at = None;
            return;
        };
        let group = &cx.groups[scrub.group];
        let is_over = !group.is_active() || group.epoch != scrub.epoch;
        let listed = scrub.listing.as_ref().map(|listing| listing.since);
        let asked = scrub.checking.as_ref().map(|checking| checking.since).or(listed);
        if is_over || asked.is_some_and(|since| cx.now.since(since) >= ANSWER_MAX) {
            return self.give_up(cx);
        }
        if asked.is_some() || self.next_at.is_some_and(|at| cx.now < at) {
            return;
        }
        self.check_next(cx);
    }

    fn next_scrub(&mut self, cx: &mut Context<'_, impl Io>) {
        while let Some((pg, is_deep)) = self.queue.pop_front() {
            let Some(index) = cx.groups.find(pg) else { continue };
            let group = &cx.groups[index];
            if !group.is_active() {
                continue;
            }
            let own = cx.disk.store.objects_of(pg);
            let objects: BTreeSet<_> = own.map(|key| (key.layer, key.object)).collect();
            self.current = Some(Scrub {
                group: index,
                epoch: group.epoch,
                listing: None,
                objects_max: objects.len() + UNKNOWN_OBJECTS_MAX,
                objects,
                runs: Vec::new(),
                checking: None,
                report: ScrubReport { pg, is_deep, objects: 0, bytes: 0, found: 0 },
            });
            let left: Vec<OsdId> = group.replicas(cx.me.id).collect();
            return self.list_next(cx, Listing { left, after: None, since: cx.now });
        }
    }

    /// Asks a member for the objects it has: it may have some that this OSD has not.
    fn list_next(&mut self, cx: &mut Context<'_, impl Io>, listing: Listing) {
        let Some(scrub) = &mut self.current else { return };
        let Some(osd) = listing.left.last().copied() else {
            scrub.listing = None;
            return;
        };
        let (pg, epoch) = (scrub.report.pg, scrub.epoch);
        let after = listing.after;
        scrub.listing = Some(listing);
        if let Some(link) = cx.links.ready(osd) {
            cx.io.send(link, &ListObjects { pg, epoch, after }.encode());
        }
    }

    /// A member's answer to that. `false` if it is for somebody else.
    pub(crate) fn handle_objects(
        &mut self,
        cx: &mut Context<'_, impl Io>,
        osd: OsdId,
        objects: &Objects<'_>,
    ) -> bool {
        let Some(scrub) = &mut self.current else { return false };
        let is_meant = scrub.report.pg == objects.head.pg
            && scrub.epoch == objects.head.epoch
            && scrub.listing.as_ref().is_some_and(|listing| listing.left.last() == Some(&osd));
        if !is_meant {
            return false;
        }
        let mut listing = scrub.listing.take().expect("it was just looked at");
        let (is_sound, last) = scrub.take_listed(listing.after, objects);
        listing.since = cx.now;
        listing.after = last;
        if !is_sound {
            let pg = scrub.report.pg;
            cx.note(format!("{osd} lists objects of pg {pg} out of order, or too many; some are left out"));
        }
        if objects.head.is_last || !is_sound {
            listing.left.pop();
            listing.after = None;
        }
        self.list_next(cx, listing);
        self.advance(cx);
        true
    }

    fn give_up(&mut self, cx: &mut Context<'_, impl Io>) {
        let Some(scrub) = self.current.take() else { return };
        if let Some(checking) = scrub.checking {
            cx.then(Task::EndCheck { id: checking.id, group: scrub.group });
        }
    }

    fn check_next(&mut self, cx: &mut Context<'_, impl Io>) {
        // Until the answers are there, ticks are enough.
        self.next_at = None;
        let Some(scrub) = &mut self.current else { return };
        if scrub.runs.is_empty()
            && let Some((volume, object)) = scrub.objects.pop_first()
        {
            scrub.report.objects += 1;
            let all = BlockRange::whole(ObjectKey { pg: scrub.report.pg, layer: volume, object });
            if scrub.report.is_deep {
                let starts = all.blocks().step_by(usize::from(CHECK_BLOCKS_MAX)).rev();
                let deep = |first_block| Run {
                    range: BlockRange { first_block, block_count: CHECK_BLOCKS_MAX, ..all },
                    is_deep: true,
                };
                scrub.runs.extend(starts.map(deep));
            }
            scrub.runs.push(Run { range: all, is_deep: false });
        }
        let Some(run) = scrub.runs.pop() else {
            let scrub = self.current.take().expect("it was just looked at");
            self.reports.push(scrub.report);
            cx.turn.next_tick = cx.now;
            return;
        };
        let index = scrub.group;
        let must_wait = cx.must_wait(&run.range);
        let id = cx.operations.add_for(OperationKind::Check, Purpose::Scrub, index, run.range);
        let (awaited, findings) = (Vec::new(), BTreeMap::new());
        // As good as drawn: nobody sees the number of an operation, or could tell by it.
        let key = cx.disk.store.unguessable(id.number() ^ cx.now.since(Instant::default()).as_nanos() as u64);
        scrub.checking = Some(Checking { id, run, since: cx.now, awaited, key, findings });
        if must_wait {
            cx.wait(id);
        } else {
            self.start(cx, id);
        }
    }

    /// Its blocks are free: asks everybody, this OSD too.
    pub(crate) fn start(&mut self, cx: &mut Context<'_, impl Io>, id: OperationId) {
        let operation = cx.operations.live(id);
        let group = operation.group;
        operation.state = OperationState::Reading;
        cx.hold(id);
        let current = self.current.as_mut().and_then(|scrub| scrub.checking.as_mut());
        let Some(checking) = current.filter(|checking| checking.id == id) else {
            // The scrub was given up while this waited.
            return cx.then(Task::EndCheck { id, group });
        };
        let Run { range, is_deep } = checking.run;
        checking.since = cx.now;
        let members: Vec<OsdId> = cx.groups[group].replicas(cx.me.id).collect();
        checking.awaited.clone_from(&members);
        checking.awaited.push(cx.me.id);
        let inquiry = Inquiry { request: id.number(), range, epoch: cx.groups[group].epoch };
        let deep = is_deep.then_some(checking.key);
        for osd in members {
            if let Some(link) = cx.links.ready(osd) {
                cx.io.send(link, &Check { inquiry, deep }.encode());
            }
        }
        match is_deep {
            true => self.read(cx, id),
            false => {
                let findings = look_into_index(&cx.disk.store, &inquiry);
                self.was_answered(cx, cx.me.id, id.number(), findings);
            }
        }
    }

    fn read(&mut self, cx: &mut Context<'_, impl Io>, id: OperationId) {
        let operation = cx.operations.live(id);
        cx.disk.look_up(operation);
        if operation.is_hole() {
            self.was_read(cx, id);
        } else {
            cx.read_parts(id);
        }
    }

    /// The drive answered what is checked: for this OSD's own scrub, or for that of another primary.
    pub(crate) fn was_read(&mut self, cx: &mut Context<'_, impl Io>, id: OperationId) {
        let operation = cx.operations.live(id);
        let first_block = operation.range.first_block;
        let key = match operation.purpose {
            Purpose::Peer { key, .. } => key,
            _ => self.current.as_ref().and_then(|scrub| scrub.checking.as_ref()).map_or(0, |one| one.key),
        };
        let mut hash_key = [0; 16];
        hash_key[..8].copy_from_slice(&key.to_le_bytes());
        let mut findings = Findings::default();
        for part in operation.parts.iter().filter(|part| part.location.is_some()) {
            for offset in 0..usize::from(part.block_count) {
                let block = part.first_block + offset as u16;
                let number = block - first_block;
                let expected = operation.checksums[usize::from(number)].get();
                let range = offset * BLOCK_BYTES..(offset + 1) * BLOCK_BYTES;
                match part.buffer.as_ref().map(|buffer| &buffer.bytes()[range]) {
                    Some(bytes) if crc32c(bytes) == expected => {
                        let [index, data] = &mut findings.digest;
                        *index = with_block(*index, block, expected);
                        *data = mixed(*data, keyed_hash(&hash_key, [bytes]));
                    }
                    _ => findings.damaged |= 1 << number,
                }
            }
        }
        let (key, asked_by) = (operation.range.key, inquiry_of(operation));
        cx.release_parts(id);
        cx.damage.counts.found += u64::from(findings.damaged.count_ones());
        if findings.damaged != 0 {
            cx.note(format!("damaged data: a scrub found it in {key} on {}", cx.me.id));
        }
        match asked_by {
            Some((link, inquiry)) => {
                cx.forget(id);
                cx.io.send(link, &Checked { inquiry, findings }.encode());
            }
            None => self.was_answered(cx, cx.me.id, id.number(), findings),
        }
    }

    /// A primary asks what blocks hold here, in short.
    pub(crate) fn handle_check(&mut self, cx: &mut Context<'_, impl Io>, link: LinkId, check: &Check) {
        let Check { inquiry, deep } = *check;
        let Some(group) = cx.groups.find(inquiry.range.key.pg) else { return };
        if !may_inquire(&cx.groups[group], cx.links.osd_at(link), inquiry.epoch) {
            // The primary gives the scrub up when its epoch ends.
            return;
        }
        if let Some(key) = deep {
            let id = add_inquiry(cx, OperationKind::Check, link, group, &inquiry, key);
            return self.read(cx, id);
        }
        let findings = look_into_index(&cx.disk.store, &inquiry);
        cx.io.send(link, &Checked { inquiry, findings }.encode());
    }

    /// A member's answer to a check, this OSD's own among them.
    pub(crate) fn was_answered(
        &mut self,
        cx: &mut Context<'_, impl Io>,
        osd: OsdId,
        request: u64,
        mut findings: Findings,
    ) {
        let Some(scrub) = &mut self.current else { return };
        let Some(checking) = scrub.checking.as_mut().filter(|checking| checking.id.number() == request)
        else {
            return;
        };
        // Whoever is asked for its index has read nothing, and nobody more than it was asked for.
        let Run { range, is_deep } = checking.run;
        findings.damaged &= if is_deep { u64::MAX >> (CHECK_BLOCKS_MAX - range.block_count) } else { 0 };
        let awaited = checking.awaited.len();
        checking.awaited.retain(|awaited| *awaited != osd);
        if checking.awaited.len() < awaited {
            checking.findings.insert(osd, findings);
        }
        if !checking.awaited.is_empty() {
            return;
        }
        let checking = scrub.checking.take().expect("it was just looked at");
        let bytes = if is_deep { u64::from(range.block_count) * BLOCK_BYTES as u64 } else { 0 };
        scrub.report.bytes += bytes;
        let is_busy = cx.now.since(cx.turn.active_at) < BUSY_FOR;
        let took = cx.now.since(checking.since);
        let percent = cx.volumes.map.share_of(WorkClass::Scrub).percent();
        let pause = if is_busy { took * (100 - percent) / percent } else { took / 4 };
        let least = Duration::from_nanos(bytes * 1_000_000_000 / BYTES_PER_SECOND_MAX);
        self.next_at = Some(cx.now + pause.min(PAUSE_MAX).max(least));
        scrub.report.found += scrub.judge(cx, &checking);
        cx.then(Task::EndCheck { id: checking.id, group: scrub.group });
    }
}

impl Scrub {
    /// Takes a page of the objects that a member has behind one of them. Answers the last, and whether the page is what it should
    /// be: in order and not empty, unless it is the last one, and of no more than this OSD can be made to remember.
    fn take_listed(
        &mut self,
        after: Option<(LayerId, u32)>,
        page: &Objects<'_>,
    ) -> (bool, Option<(LayerId, u32)>) {
        let mut last = after;
        for entry in page.entries() {
            let object = (entry.layer, entry.object);
            let is_behind = last.is_none_or(|last| last < object);
            let has_room = self.objects.len() < self.objects_max || self.objects.contains(&object);
            if !is_behind || !has_room {
                return (false, last);
            }
            self.objects.insert(object);
            last = Some(object);
        }
        (page.head.is_last || last != after, last)
    }

    /// Has what does not verify written anew, and looks closer where members differ. Answers how many blocks were found.
    fn judge(&mut self, cx: &mut Context<'_, impl Io>, checking: &Checking) -> u64 {
        let index = self.group;
        let BlockRange { key, first_block, block_count } = checking.run.range;
        let own = checking.findings.get(&cx.me.id).copied().unwrap_or_default();
        let damaged = checking.findings.values().fold(0, |all, findings| all | findings.damaged);
        if damaged != 0 {
            cx.pass(Milestone::ScrubDamaged);
            for number in (0..block_count).filter(|number| damaged >> number & 1 != 0) {
                let is_own = own.damaged >> number & 1 != 0;
                let reason = if is_own { MendReason::Damaged } else { MendReason::OtherDamaged };
                cx.mend(index, key, first_block + number, reason);
            }
            // Of the others it is not known yet whether they are the same: not every member looked at the same ones.
            let is_sound = |number: u16| damaged >> number & 1 == 0;
            let sound = runs_alike(0..block_count, is_sound).into_iter().filter(|(.., is_sound)| *is_sound);
            self.runs.extend(sound.map(|(number, block_count, _)| Run {
                range: BlockRange { first_block: first_block + number, block_count, key },
                ..checking.run
            }));
            return u64::from(damaged.count_ones());
        }
        if checking.findings.values().all(|findings| findings.digest == own.digest) {
            return 0;
        }
        if block_count > 1 {
            let (part, end) = ((block_count / PARTS).max(1), checking.run.range.blocks().end);
            let starts = checking.run.range.blocks().step_by(usize::from(part));
            self.runs.extend(starts.map(|first_block| Run {
                // The last may be a smaller one: behind it the object may end.
                range: BlockRange { first_block, block_count: part.min(end - first_block), key },
                ..checking.run
            }));
            return 0;
        }
        cx.pass(Milestone::ScrubDiffers);
        let votes = |digest: [u64; 2]| {
            checking.findings.values().filter(|findings| findings.digest == digest).count()
        };
        let winner = checking.findings.iter().max_by_key(|(osd, findings)| {
            (votes(findings.digest), findings.digest == own.digest, Reverse(**osd))
        });
        let Some((winner, findings)) = winner else { return 0 };
        let reason = match findings.digest == own.digest {
            true => MendReason::OtherDamaged,
            false => MendReason::Outvoted(*winner),
        };
        cx.note(format!(
            "members differ in block {first_block} of {key}; what {winner} holds is taken for right"
        ));
        cx.mend(index, key, first_block, reason);
        1
    }
}

/// A digest with one more value in it.
fn mixed(digest: u64, value: u64) -> u64 {
    mix(digest.rotate_left(1) ^ value)
}

/// A digest of blocks with one more in it.
fn with_block(digest: u64, block: u16, crc32c: u32) -> u64 {
    mixed(digest, u64::from(block) << 32 | u64::from(crc32c))
}

/// What the index says of blocks.
fn look_into_index(store: &Store, inquiry: &Inquiry) -> Findings {
    let blocks = inquiry.range.blocks();
    let mut digest = 0;
    store.for_each_block(&inquiry.range.key, |block, crc32c, _| {
        if blocks.contains(&block) {
            digest = with_block(digest, block, crc32c);
        }
    });
    Findings { damaged: 0, digest: [digest, 0] }
}

/// A check is over, or was given up: its blocks are free.
pub(crate) fn end_check(cx: &mut Context<'_, impl Io>, id: OperationId, group: u32) {
    cx.lines.ended(id);
    if cx.operations.get(id).is_some() {
        cx.abandon(id);
        cx.then(Task::StartWaiting { group });
    }
}

#[cfg(test)]
mod tests;
