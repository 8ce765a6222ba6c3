//! Who handles what: every input goes to the mechanism that it concerns, and what that has done by others is carried out.

use crate::broken::Sabotage;
use crate::context::{Context, Handled, Task};
use crate::disk::PartToken;
use crate::epoch::kept::KeptQueries;
use crate::epoch::{self, claim, query, repair};
use crate::fence::{self, Fences};
use crate::group::Group;
use crate::group::role::State;
use crate::heal::backfill::{self, Backfill};
use crate::heal::held;
use crate::heal::mend::{self, Mends};
use crate::heal::renewal::Renewals;
use crate::heal::scrub::{self, Scrubs};
use crate::hello;
use crate::io::{Io, TOKEN_SHIFT, TOKEN_STORE_FLUSH, TOKEN_STORE_WRITE};
use crate::journal::Milestone;
use crate::ledger::{Replicated, StagedRecord};
use crate::links::inquiries::{self, Asks};
use crate::links::{Awaited, LinkError, Peer, ToLearner};
use crate::moves::cut::{self, Cuts};
use crate::moves::delete::Deletions;
use crate::moves::flatten::Flattens;
use crate::moves::placement;
use crate::moves::prune::Prunes;
use crate::moves::split::{self, Splits};
use crate::operation::{MendReason, OperationId, OperationKind, OperationState, Purpose};
use crate::replication::order;
use crate::replication::replica::{self, Content};
use crate::request::read::{self, Reads};
use crate::request::{admit, edges, limits, queue, write};
use base::hash::Set;
use base::map::ClusterMap;
use base::{Buffer, LinkId, OsdId};
use std::sync::Arc;
use std::time::Duration;
use store::Action;
use wire::{Kind, Message, Outcome, Push, PushHole, RefusalDetails, ReplicateAck, ReplicateRefused, Status};

/// How often the slow things are looked at.
const TICK: Duration = Duration::from_millis(100);
/// The same when none of them is under way: an idle OSD hardly wakes.
const TICK_AT_REST: Duration = Duration::from_secs(2);

/// The mechanisms of an OSD, and the way of every input to them.
#[derive(Debug, Default)]
pub(crate) struct Router {
    pub(crate) reads: Reads,
    pub(crate) backfill: Backfill,
    pub(crate) mends: Mends,
    pub(crate) scrubs: Scrubs,
    pub(crate) splits: Splits,
    pub(crate) deletions: Deletions,
    pub(crate) cuts: Cuts,
    pub(crate) prunes: Prunes,
    pub(crate) flattens: Flattens,
    pub(crate) fences: Fences,
    pub(crate) kept: KeptQueries,
    renewals: Renewals,
    /// The drive did nothing when this was looked at last.
    pub(crate) is_silent: bool,
    /// Memory for a list of groups.
    scratch: Vec<u32>,
}

impl Router {
    // Messages.

    /// Handles a message.
    pub(crate) fn message(
        &mut self,
        cx: &mut Context<'_, impl Io>,
        link: LinkId,
        message: Message<'_>,
    ) -> Result<Handled, LinkError> {
        match cx.links.get_mut(link).ok_or(LinkError::OutOfTurn("the link is closed"))? {
            // A link that was dialled brings a welcome, once, and then all else.
            Peer::Osd(peer)
                if peer.is_ready() == matches!(message, Message::Welcome(_))
                    && !matches!(message, Message::Refused(_)) =>
            {
                Err(LinkError::OutOfTurn("a welcome is missing, or is the second one"))
            }
            Peer::Osd(_) => self.message_of_osd(cx, link, message),
            Peer::Client(client) => {
                let refusal = client.lacks_right(&message, cx.volumes);
                let refusal = refusal.filter(|_| !cx.me.broken.is(Sabotage::ForgetRights));
                if let Some((request, status)) = refusal {
                    cx.pass(Milestone::refused(status));
                    cx.io.send(link, &Outcome::refused(request, status, RefusalDetails::default()));
                    return Ok(Handled::Done);
                }
                // A fence moves no data, and may wait here for long.
                if !matches!(message, Message::Fence(_)) {
                    if !cx.turn.is_busy(cx.now) {
                        cx.turn.next_tick = cx.now;
                    }
                    cx.turn.active_at = cx.now;
                    cx.rates.pace.client_came(cx.now);
                }
                self.message_of_client(cx, link, message)
            }
            Peer::Unknown(credential) => {
                let Message::Hello(hello) = message else {
                    return Err(LinkError::OutOfTurn("the first message is not a hello"));
                };
                let credential = credential.take();
                hello::handle_hello(cx, link, &hello, credential)?;
                Ok(Handled::Done)
            }
        }
    }

    fn message_of_client(
        &mut self,
        cx: &mut Context<'_, impl Io>,
        link: LinkId,
        message: Message<'_>,
    ) -> Result<Handled, LinkError> {
        match message {
            Message::Read(request) => Ok(self.reads.handle_read(cx, link, &request)),
            Message::Allocated(request) => Ok(self.reads.handle_allocated(cx, link, &request)),
            Message::Changed(request) => {
                self.reads.handle_changed(cx, link, &request);
                Ok(Handled::Done)
            }
            Message::Space(request) => {
                self.reads.handle_space(cx, link, &request);
                Ok(Handled::Done)
            }
            Message::Write(write) => {
                Ok(write::handle_write(cx, link, &write.head, write.checksums, write.data))
            }
            Message::Zero(request) => Ok(write::handle_zero(cx, link, &request)),
            Message::Fence(fence) => {
                cx.links.may_fence(link, fence.volume, cx.volumes)?;
                Ok(self.fences.handle_client_fence(cx, link, &fence))
            }
            _ => Err(LinkError::OutOfTurn("a client sent a message of OSDs")),
        }
    }

    fn message_of_osd(
        &mut self,
        cx: &mut Context<'_, impl Io>,
        link: LinkId,
        message: Message<'_>,
    ) -> Result<Handled, LinkError> {
        let osd = cx.links.osd_at(link).expect("the caller looked");
        match message {
            // What may have to come again.
            Message::ReplicateWrite(write) => {
                let content = Content::Data(write.checksums, write.data);
                return Ok(replica::apply_write(cx, link, &write.head, content));
            }
            Message::ReplicateZero(zero) => {
                return Ok(replica::apply_write(cx, link, &zero, Content::Zeros));
            }
            Message::ReplicateHole(hole) => {
                return Ok(replica::apply_write(cx, link, &hole, Content::Hole));
            }
            Message::Activate(activate) => return Ok(replica::activate(cx, link, &activate)),
            Message::Whole(group) => return Ok(replica::apply_whole(cx, link, group)),
            Message::Reached(object) => return Ok(replica::apply_reached(cx, link, &object)),
            Message::PushEntry(entry) => return Ok(replica::apply_entry(cx, link, &entry)),
            Message::PushWrite(push) => {
                let content = Content::Pushed(push.checksums, push.data);
                return Ok(replica::apply_push(cx, link, &push.head, content));
            }
            Message::PushZero(push) => return Ok(replica::apply_push(cx, link, &push, Content::Zeros)),
            Message::PushHole(hole) => {
                let PushHole { range, epoch, changed } = hole;
                let push = Push { range, epoch };
                return Ok(replica::apply_push(cx, link, &push, Content::PushedHole(changed)));
            }
            Message::PushLost(lost) => {
                return Ok(replica::apply_push(cx, link, &lost.push, Content::Lost(lost.words)));
            }
            // What is handled whenever it comes.
            Message::Welcome(welcome) => {
                let peer = cx.links.osd_mut(link).expect("the caller looked");
                (peer.version, peer.since) = (Some(welcome.version), cx.now);
                cx.turn.next_tick = cx.now;
                fence::tell_all(cx, link);
            }
            Message::Refused(refused) => return Err(LinkError::Refused(refused.reason.to_owned())),
            Message::Fence(fence) => fence::handle_peer_fence(cx, link, &fence),
            Message::FenceDone(fence) => self.fences.handle_done(cx, link, &fence),
            Message::Lease(mut lease) => {
                if lease.ttl_ms > 0 && claim::is_to_be_replaced(cx, osd) {
                    cx.presence.leases.refuse(osd, cx.now, lease.ttl_ms);
                    lease.ttl_ms = 0;
                }
                let is_busy = cx.turn.is_busy(cx.now);
                if let Some(answer) = cx.presence.handle_lease(osd, &lease, is_busy, cx.now) {
                    cx.io.send(link, &answer.encode());
                }
            }
            Message::ReplicateAck(ack) => self.acknowledged(cx, link, &ack)?,
            Message::ReplicateRefused(refused) => self.refused(cx, link, &refused),
            Message::Query(query) => query::handle_query(cx, &mut self.kept, link, &query),
            Message::Position(position) => {
                if let Some(group) = query::handle_position(cx, osd, &position) {
                    self.backfill.learner_stands(cx, group, osd, &position);
                }
            }
            Message::Serves(group) => replica::epoch_serves(cx, link, group),
            Message::ListObjects(wanted) => inquiries::wait(cx.links, link, Asks::Objects(wanted)),
            Message::Objects(objects) => {
                if !self.scrubs.handle_objects(cx, osd, &objects) {
                    self.backfill.handle_objects(cx, osd, &objects);
                }
            }
            Message::ListBlocks(wanted) => self.inquire(cx, link, Asks::Blocks(wanted)),
            Message::Blocks(blocks) => self.backfill.handle_blocks(cx, osd, &blocks),
            Message::Fetch(inquiry) => self.inquire(cx, link, Asks::Content(inquiry)),
            Message::Fetched(fetched) => self.mends.handle_fetched(cx, link, &fetched),
            Message::Check(check) => self.inquire(cx, link, Asks::Check(check)),
            Message::AskAllowance(asked) => {
                if let Some(answer) = cx.rates.limits.was_asked(osd, link, &asked, cx.now) {
                    cx.io.send(link, &answer.encode(Kind::Allowance));
                }
            }
            Message::Allowance(given) => cx.rates.limits.was_given(link, &given, cx.now),
            Message::Checked(checked) => {
                self.scrubs.was_answered(cx, osd, checked.inquiry.request, checked.findings);
            }
            _ => return Err(LinkError::OutOfTurn("an OSD sent a message of clients")),
        }
        Ok(Handled::Done)
    }

    // What other OSDs ask.

    /// Answers what an OSD asks, or has it wait until that one has taken some of what it was sent.
    fn inquire(&mut self, cx: &mut Context<'_, impl Io>, link: LinkId, asks: Asks) {
        let unread_bytes = cx.unread_bytes(link);
        if cx.links.osd_mut(link).is_some_and(|peer| peer.inquiries.takes(unread_bytes)) {
            return self.answer(cx, link, asks);
        }
        inquiries::wait(cx.links, link, asks);
    }

    fn answer(&mut self, cx: &mut Context<'_, impl Io>, link: LinkId, asks: Asks) {
        match asks {
            Asks::Position(query) => query::handle_query(cx, &mut self.kept, link, &query),
            Asks::Objects(wanted) => held::list_objects(cx, link, &wanted),
            Asks::Blocks(wanted) => held::list_blocks(cx, link, wanted),
            Asks::Content(inquiry) => mend::handle_fetch(cx, link, &inquiry),
            Asks::Check(check) => self.scrubs.handle_check(cx, link, &check),
        }
    }

    /// Answers what waited of what other OSDs ask, as far as they have taken what they were sent. Of all of them one has objects
    /// listed; what else that one asks for comes behind the others with the next turn.
    fn answer_waiting(&mut self, cx: &mut Context<'_, impl Io>) {
        cx.turn.has_listed = false;
        let mut listed_for = None;
        for link in std::mem::take(&mut cx.links.with_inquiries) {
            let mut work = 0;
            loop {
                let unread_bytes = cx.unread_bytes(link);
                let Some(peer) = cx.links.osd_mut(link).filter(|peer| peer.inquiries.are_waiting()) else {
                    break;
                };
                let is_others_turn =
                    work >= queue::WORK_MAX || cx.turn.has_listed && peer.inquiries.lists_next();
                let is_left = peer.inquiries.has_room(unread_bytes) && is_others_turn;
                cx.turn.goes_on |= is_left;
                let next = if is_left { None } else { peer.inquiries.next(unread_bytes) };
                let Some(asks) = next else {
                    if !cx.links.with_inquiries.contains(&link) {
                        cx.links.with_inquiries.push(link);
                    }
                    break;
                };
                work += queue::work_to_answer(&asks);
                self.answer(cx, link, asks);
                self.settle(cx);
                if cx.turn.has_listed && listed_for.is_none() {
                    listed_for = Some(link);
                }
            }
        }
        cx.links.with_inquiries.sort_by_key(|link| Some(*link) == listed_for);
    }

    /// A replica has everything up to a message on stable media.
    fn acknowledged(
        &mut self,
        cx: &mut Context<'_, impl Io>,
        link: LinkId,
        ack: &ReplicateAck,
    ) -> Result<(), LinkError> {
        cx.links.heard_ack(link, ack)?;
        while let Some(awaited) = cx.links.next_had(link, ack.through) {
            match awaited {
                Awaited::Write(operation) => order::member_has(cx, operation),
                Awaited::Learner { sent: ToLearner::Entry | ToLearner::Write { .. }, .. } => {}
                Awaited::Learner { group, session, sent } => {
                    self.backfill.learner_has(cx, group, session, sent);
                }
            }
            self.settle(cx);
        }
        self.backfill.advance_promotions(cx);
        Ok(())
    }

    /// A replica did not apply a message: the group begins anew, which brings the replica into line.
    fn refused(&mut self, cx: &mut Context<'_, impl Io>, link: LinkId, refused: &ReplicateRefused) {
        let ReplicateRefused { ordinal, status, epoch } = *refused;
        let Some((osd, awaited)) = cx.links.refused(link, ordinal) else { return };
        match awaited {
            Awaited::Write(operation) => {
                let Some(operation) = cx.operations.get(operation) else { return };
                let group = operation.group;
                if matches!(operation.purpose, Purpose::Cut(_) | Purpose::Flatten) {
                    cx.groups[group].pauses.tails_wait_until = Some(cx.now + cut::REFUSED_PAUSE);
                }
                let pg = cx.groups[group].pg;
                cx.note(format!("{osd} refused a write of pg {pg}: {status:?} ({epoch})"));
                // What made it refuse may last: each claim is a commit of the registry.
                epoch::end_for_longer(cx, group, &format!("{osd} refused a write: {status:?}"));
            }
            Awaited::Learner { group, session, .. } => {
                self.backfill.learner_refused(cx, group, session, osd, status);
            }
        }
    }

    // The drive.

    /// The drive answered one part of an operation, if it gave something.
    pub(crate) fn part_was_read(&mut self, cx: &mut Context<'_, impl Io>, token: u64, given: Option<Buffer>) {
        let part = PartToken::of(token);
        let id = cx.operations.reading(part.slot, part.serial_low);
        let operation = cx.operations.live(id);
        if !cx.disk.was_read(operation, part.index, given) {
            return;
        }
        if operation.state == OperationState::Abandoned {
            return cx.forget(id);
        }
        // A repair is divided by whoever orders it.
        if operation.purpose != Purpose::Repair && operation.divide_failed() {
            cx.journal.pass(Milestone::ReadDivided);
            return cx.read_parts(id);
        }
        self.were_read(cx, id);
    }

    /// All that was to be read for an operation was, as far as it could be.
    fn were_read(&mut self, cx: &mut Context<'_, impl Io>, id: OperationId) {
        let Some(operation) = cx.operations.get(id) else { return };
        match (operation.kind, operation.purpose) {
            (OperationKind::Read, Purpose::Peer { .. }) => mend::fetch_was_read(cx, id),
            (OperationKind::Read, _) => read::was_read(cx, id),
            (OperationKind::Push, _) => self.backfill.push_was_read(cx, id),
            (OperationKind::Mend, _) => self.mends.was_read(cx, id),
            (OperationKind::Check, _) => self.scrubs.was_read(cx, id),
            (_, Purpose::Repair) => repair::was_read(cx, id),
            _ => edges::were_read(cx, id),
        }
    }

    /// Does what the store wants, until it wants nothing more.
    pub(crate) fn perform(&mut self, cx: &mut Context<'_, impl Io>) {
        loop {
            let mut actions = cx.disk.take_actions();
            for action in actions.drain(..) {
                match action {
                    Action::Write { token, offset, buffer, length } => {
                        let token = TOKEN_STORE_WRITE << TOKEN_SHIFT | u64::from(token);
                        cx.disk.patience.asks(token);
                        cx.io.write(token, offset, buffer, length);
                    }
                    Action::Flush { token } => {
                        let token = TOKEN_STORE_FLUSH << TOKEN_SHIFT | u64::from(token);
                        cx.disk.patience.asks(token);
                        cx.io.flush(token);
                    }
                    Action::Read { token, offset, length } => {
                        cx.disk.read_for_store(token, offset, length, cx.io);
                    }
                    Action::Sealed { batch, buffer } => order::send_sealed(cx, batch, &buffer),
                    Action::Durable { token } => self.became_durable(cx, token),
                    Action::Lost { token, reason } => was_lost(cx, token, &reason),
                    Action::ShutdownDone => cx.turn.is_shut_down = true,
                }
                self.settle(cx);
            }
            // Handling an event may have made the store act again.
            if !cx.disk.give_back(actions) {
                return;
            }
        }
    }

    fn became_durable(&mut self, cx: &mut Context<'_, impl Io>, token: u64) {
        let (group, record) = cx.ledger.settle(token, cx.groups);
        match record {
            StagedRecord::Own(operation) => order::member_has(cx, operation),
            StagedRecord::Replica { link, ordinal, write } => {
                cx.links.note_ack(link, ordinal);
                if let Some(Replicated { bytes, at }) = write {
                    cx.journal.figures.replicate.done(u64::from(bytes), cx.now.since(at));
                    cx.rates.pace.client_was_served(cx.now, u64::from(bytes));
                }
            }
            StagedRecord::Left => {}
            StagedRecord::Split { child } => {
                cx.groups[child].staged_count -= 1;
                nothing_is_staged(cx, child);
            }
        }
        self.settle(cx);
        nothing_is_staged(cx, group);
    }

    // What mechanisms have done by each other.

    /// Carries out the tasks above `floor`: the oldest first, and before the next one whatever follows from it.
    fn carry_out(&mut self, cx: &mut Context<'_, impl Io>, floor: usize) {
        let mut asked_before = floor;
        while cx.turn.tasks.len() > floor {
            cx.turn.tasks[asked_before..].reverse();
            let Some(task) = cx.turn.tasks.pop() else { return };
            asked_before = cx.turn.tasks.len();
            match task {
                Task::StartWaiting { group } => self.start_waiting(cx, group),
                Task::Mend { group, range, reason } => self.mends.begin(cx, group, range, reason),
                Task::Fetch(fetch) => self.mends.fetch_next(cx, fetch),
                Task::FetchFrom(fetch, osd) => self.mends.fetch_from(cx, fetch, osd),
                Task::EndCheck { id, group } => scrub::end_check(cx, id, group),
                Task::WereHoles(id) => self.were_read(cx, id),
                Task::RepairDone { group } => repair::done(cx, group),
                Task::RepairFailed { group, error } => repair::failed(cx, group, &error),
            }
        }
    }

    /// Carries out all that mechanisms asked for.
    pub(crate) fn settle(&mut self, cx: &mut Context<'_, impl Io>) {
        self.carry_out(cx, 0);
    }

    /// Starts whatever of a group's waiting operations can start, as far as it is their turn.
    fn start_waiting(&mut self, cx: &mut Context<'_, impl Io>, group: u32) {
        let floor = cx.turn.tasks.len();
        let mut may_read = true;
        loop {
            if cx.turn.work >= queue::WORK_MAX {
                if cx.lines.has_ready(group) {
                    cx.turn.look_again(group);
                    cx.turn.goes_on = true;
                }
                return;
            }
            let Some(id) = cx.lines.next_ready(group, may_read) else { return };
            let operation = cx.operations.live(id);
            let is_read = operation.kind == OperationKind::Read;
            cx.turn.work += queue::work_to_start(operation);
            let is_started = admit::is_answered(cx, id) || self.start(cx, id);
            let waits_still = !cx.lines.was_tried(id, is_started);
            if waits_still {
                cx.turn.look_again(group);
            }
            self.carry_out(cx, floor);
            if waits_still && !is_read {
                return;
            }
            may_read &= !waits_still;
        }
    }

    /// Starts an operation whose blocks are free. `false` when there is no room for it.
    fn start(&mut self, cx: &mut Context<'_, impl Io>, id: OperationId) -> bool {
        let operation = cx.operations.live(id);
        match operation.kind {
            OperationKind::Read => return self.reads.start_waiting(cx, id),
            OperationKind::Zero | OperationKind::Hole => return order::zero(cx, id),
            OperationKind::Write => return !operation.payload.is_held() || write::start(cx, id),
            OperationKind::Push => backfill::start_push(cx, id),
            OperationKind::Mend => self.mends.start(cx, id),
            OperationKind::Check => self.scrubs.start(cx, id),
            OperationKind::Mark => unreachable!("a mark never waits"),
        }
        true
    }

    // The turn.

    /// The end of a turn: what waited for it, what is due, then batches go to the drive, and acknowledgements to the
    /// primaries.
    pub(crate) fn end_turn(&mut self, cx: &mut Context<'_, impl Io>) {
        // Looked up before the clock was read: what is looked up from here on waits for the next turn.
        self.reads.send_deferred(cx);
        self.answer_waiting(cx);
        limits::advance(cx);
        self.begin_throttled(cx);
        // Whoever is still blocked is noted anew, in the other vector.
        let scratch = std::mem::take(&mut self.scratch);
        let mut blocked = std::mem::replace(&mut cx.turn.blocked, scratch);
        // Each the same part, for one group may have more than a turn takes.
        let part = (queue::WORK_MAX / blocked.len().max(1)).max(1);
        for group in blocked.drain(..) {
            cx.turn.work = queue::WORK_MAX - part;
            self.start_waiting(cx, group);
            repair::next(cx, group);
            self.settle(cx);
        }
        cx.turn.work = 0;
        self.scratch = blocked;
        if cx.now >= cx.turn.next_tick {
            cx.turn.next_tick = cx.now + TICK;
            self.tick(cx);
            if self.is_at_rest(cx) {
                cx.turn.next_tick = cx.now + TICK_AT_REST;
            }
        } else if self.scrubs.next_at.is_some_and(|at| cx.now >= at) {
            self.scrubs.advance(cx);
        }
        self.settle(cx);
        if cx.rates.pace.next_at.is_some_and(|at| cx.now >= at) {
            self.backfill.go_on(cx);
            self.settle(cx);
        }
        cx.rates.mclock.end_turn(cx.now);
        self.splits.stage(cx);
        cx.disk.flush();
        self.perform(cx);
        let store = &cx.disk.store;
        cx.links.send_acks(store.is_full(), store.takes_no_objects(), cx.io);
    }

    /// Handles what waited for limits and may begin, as far as there is memory for it, and its client takes what it is answered. Who
    /// has to wait longer is in nobody else's way.
    fn begin_throttled(&mut self, cx: &mut Context<'_, impl Io>) {
        let mut stalled = Set::default();
        for waiting in cx.rates.limits.take_ready() {
            let link = waiting.link;
            if !matches!(cx.links.get(link), Some(Peer::Client(_))) {
                // It is gone.
                continue;
            }
            if stalled.contains(&link)
                || !queue::takes_client(cx.links.tenants.links_beside(link), cx.io.unsent_bytes(link))
            {
                cx.rates.limits.put_back(waiting);
            } else if !waiting.is_read() {
                limits::ask_for_again(cx, &waiting);
            } else {
                let handled = self.message(cx, link, Message::Read(waiting.request));
                self.settle(cx);
                if matches!(handled, Ok(Handled::Stalled)) {
                    stalled.insert(link);
                    cx.rates.limits.put_back(waiting);
                }
            }
        }
    }

    /// Looks at the slow things.
    fn tick(&mut self, cx: &mut Context<'_, impl Io>) {
        limits::tick(cx);
        cx.rates.mclock.tick(cx.now);
        cx.disk.store.retry_reads();
        cx.disk.patience.look(cx.now);
        let is_silent = cx.disk.patience.is_silent(cx.now);
        if std::mem::replace(&mut self.is_silent, is_silent) != is_silent {
            cx.note(match is_silent {
                true => "the drive does nothing of what it was asked, or of one kind of it; others go on without it \
                         until it does"
                    .to_owned(),
                false => "the drive does again what it is asked".to_owned(),
            });
        }
        if cx.is_leaving() {
            // The others are to notice that soon.
            return leave(cx);
        }
        cx.presence.dial(cx.me.id, &cx.volumes.map, cx.links, cx.now, cx.io);
        let is_busy = cx.turn.is_busy(cx.now);
        for link in cx.presence.renew(cx.links, cx.groups, is_busy, cx.now, cx.io) {
            cx.io.close(link, "the OSD is silent");
            epoch::link_ended(cx, link, "it is silent");
        }
        cx.presence.look_around(cx.links, &cx.volumes.map, cx.now);
        for group in cx.groups.indices() {
            claim::advance(cx, group);
            self.settle(cx);
        }
        self.fences.advance(cx);
        self.renewals.advance(cx);
        // One after the other: of a drive that lost much there are many.
        if self.mends.is_idle()
            && let Some((key, block)) = cx.damage.next_to_ask()
            && let Some(group) = cx.groups.find(key.pg)
        {
            cx.mend(group, key, block, MendReason::Damaged);
        }
        self.mends.advance(cx);
        self.settle(cx);
        self.scrubs.advance(cx);
        self.settle(cx);
        self.backfill.advance(cx);
        self.settle(cx);
        placement::advance(cx);
        self.splits.advance(cx);
        self.settle(cx);
        self.deletions.look(cx);
        // What is staged before a split is what is split.
        if self.splits.is_idle() {
            self.deletions.advance(cx);
            self.prunes.advance(cx);
            self.flattens.advance(cx);
            self.cuts.advance(cx);
        }
    }

    /// Whether nothing but requests and messages can change anything.
    fn is_at_rest(&self, cx: &Context<'_, impl Io>) -> bool {
        // A primary that serves everybody it should, or a replica whose primary shows itself.
        let is_group_at_rest = |group: &Group| {
            if group.config.primary == cx.me.id {
                group.is_active()
                    && !group.wanted_learners().any(|osd| cx.can_follow(osd))
                    && !placement::has_work(cx, group)
                    && !split::is_to_be_split(cx, group)
            } else {
                !group.config.in_sync.contains(&cx.me.id)
                    || !cx.presence.leases.is_free_of(group.config.primary, cx.now)
            }
        };
        !cx.turn.is_busy(cx.now)
            // Leases must last until the next look.
            && cx.presence.holds_all(cx.now + TICK_AT_REST)
            && cx.presence.is_complete()
            && self.deletions.is_idle()
            && self.cuts.is_idle()
            && self.prunes.is_idle()
            && self.flattens.is_idle()
            && self.mends.is_idle()
            && cx.damage.asks_nothing()
            && self.fences.is_idle()
            && self.scrubs.is_idle()
            && cx.rates.limits.is_at_rest()
            && !cx.disk.store.is_in_want_of_room()
            && cx.groups.iter().all(is_group_at_rest)
            && cx.links.osds().all(|(osd, _)| cx.links.ready(osd).is_some())
    }

    /// A newer map.
    pub(crate) fn map(&mut self, cx: &mut Context<'_, impl Io>, map: &Arc<ClusterMap>) {
        if map.revision < cx.volumes.map.revision {
            // It was overtaken by one that brought the answer to a proposal.
            return;
        }
        cx.presence.leases.start(cx.now);
        cx.presence.registry_answered(cx.now);
        end_links_of_replaced(cx, map);
        heed_addresses(cx, map);
        self.deletions.are_due |= cx.volumes.heed(map, cx.now);
        for link in std::mem::take(&mut cx.volumes.contradicted) {
            let reason = "it told of an attach that the map does not bear out";
            cx.io.close(link, reason);
            epoch::link_ended(cx, link, reason);
        }
        placement::heed(cx, map);
        cx.volumes.map = map.clone();
        placement::leave_removed(cx, &mut self.deletions);
        self.splits.by_map(cx);
        for group in cx.groups.iter_mut() {
            group.note_shown(map);
            let pool = map.pools.get(&group.pg.pool);
            (group.wanted.size, group.wanted.min_size) =
                pool.map_or((0, 0), |pool| (pool.size as usize, pool.min_size as usize));
        }
        cx.rates.limits.heed(map, cx.now);
        cx.rates.mclock.heed(map, cx.me.id);
        cut::heed(cx);
        cx.links.heed_principals(map, cx.io);
        placement::find_left(cx, &mut self.deletions);
        query::look_again(cx, &mut self.kept);
        cx.presence.find_neighbours(cx.me.id, cx.groups);
        cx.turn.next_tick = cx.now;
        self.settle(cx);
    }
}

/// Whom a newer map shows at another address may be dialled at once, however short ago its link ended.
fn heed_addresses(cx: &mut Context<'_, impl Io>, map: &ClusterMap) {
    let address = |map: &ClusterMap, osd: &OsdId| map.osds.get(osd).and_then(|info| info.address);
    let known = &cx.volumes.map;
    cx.links.redial_after.retain(|osd, _| address(known, osd) == address(map, osd));
}

/// An OSD whose drive was replaced is another one by the same number: what came from the one before counts no more. Nor does what
/// comes from a node that it was on: that one proved the key of a node that the OSD is not on any more.
fn end_links_of_replaced(cx: &mut Context<'_, impl Io>, map: &ClusterMap) {
    let known = &cx.volumes.map.osds;
    let is_replaced = |osd: &OsdId| match (known.get(osd), map.osds.get(osd)) {
        (Some(before), Some(now)) => (before.uuid, before.node) != (now.uuid, now.node),
        _ => false,
    };
    let replaced: Vec<LinkId> =
        cx.links.osds().filter(|(osd, _)| is_replaced(osd)).map(|(_, link)| link).collect();
    for link in replaced {
        cx.io.close(link, "its drive was replaced, or is in another node");
        epoch::link_ended(cx, link, "its drive was replaced, or is in another node");
    }
}

/// Ends the connections to the other OSDs.
fn leave(cx: &mut Context<'_, impl Io>) {
    let links: Vec<LinkId> = cx.links.osds().map(|(_, link)| link).collect();
    for link in links {
        cx.io.close(link, "the OSD stops");
        epoch::link_ended(cx, link, "this OSD stops");
    }
    for group in cx.groups.indices() {
        claim::advance(cx, group);
    }
}

/// If nothing of a group is on its way to the drive any more, what waited for that goes on.
fn nothing_is_staged(cx: &mut Context<'_, impl Io>, group: u32) {
    if cx.groups[group].staged_count > 0 {
        return;
    }
    query::answer_pending(cx, group);
    query::begin_epoch(cx, group);
    if cx.groups[group].state() == State::Waiting {
        claim::advance(cx, group);
    }
}

/// What was staged will never be durable: the drive failed.
fn was_lost(cx: &mut Context<'_, impl Io>, token: u64, reason: &str) {
    let (group, record) = cx.ledger.settle(token, cx.groups);
    match record {
        StagedRecord::Own(id) => {
            if let Some(operation) = cx.operations.get(id) {
                let purpose = operation.purpose;
                // Another member may do it.
                let has_others = cx.groups[group].config.in_sync.len() > 1;
                cx.refuse(purpose, if has_others { Status::NotActive } else { Status::DeviceFailed });
                cx.lines.ended(id);
                cx.forget(id);
            }
            epoch::end(cx, group, &format!("the drive of {} failed: {reason}", cx.me.id));
        }
        StagedRecord::Replica { link, ordinal, .. } => {
            let epoch = cx.groups[group].epoch;
            let refused = ReplicateRefused { ordinal, status: Status::DeviceFailed, epoch };
            cx.io.send(link, &refused.encode());
        }
        // Both halves wait for ever, as long as this process lives: its drive is of no use any more.
        StagedRecord::Left | StagedRecord::Split { .. } => {}
    }
    cx.note(format!("the drive failed: {reason}"));
}

#[cfg(test)]
mod tests;
