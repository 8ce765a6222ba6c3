//! Reads of clients, and their questions of what is allocated.
//!
//! What is read is served only while the leases last, looked at when the answer is sent. What was looked up without the
//! drive is answered with the end of the turn, when the clock was read again.

use super::{admit, limits, queue};
use crate::broken::Sabotage;
use crate::context::{Context, Handled};
use crate::io::Io;
use crate::journal::Milestone;
use crate::operation::{Asked, OperationId, OperationKind, OperationState, Purpose};
use crate::volumes::Sight;
use base::figures::RequestKind;
use base::{BLOCK_BYTES, BlockRange, Epoch, LayerId, LinkId, OBJECT_BLOCKS, ObjectKey};
use wire::{CHANGED_BYTES, Outcome, RefusalDetails, Request, Status};
use zerocopy::little_endian::U32;

/// A reply that was looked up and leaves with the end of the turn, if the leases still last then.
#[derive(Clone, Debug)]
enum Answer {
    Zeros,
    Allocated([u8; OBJECT_BLOCKS / 8]),
    Changed(Box<[u8; CHANGED_BYTES]>),
    Space(Box<[u8]>),
}

/// See [`Answer`].
#[derive(Clone, Debug)]
struct Deferred {
    group: u32,
    epoch: Epoch,
    asked: Asked,
    answer: Answer,
}

/// The reads of an OSD that are answered with the end of the turn.
#[derive(Debug, Default)]
pub(crate) struct Reads {
    deferred: Vec<Deferred>,
}

impl Reads {
    /// Whether something is to be answered.
    pub(crate) fn is_owing(&self) -> bool {
        !self.deferred.is_empty()
    }

    pub(crate) fn handle_read(
        &mut self,
        cx: &mut Context<'_, impl Io>,
        link: LinkId,
        request: &Request,
    ) -> Handled {
        let asked = admit::asked(cx, link, request, RequestKind::Read);
        let admitted = admit::admit(cx, request);
        let Some(group) = admit::or_refuse(cx, admitted, &asked) else { return Handled::Done };
        if !queue::takes_read(cx.disk, asked.tenant, request) || !admit::is_its_turn(cx, &asked) {
            return Handled::Stalled;
        }
        let range = admit::range_of(request);
        let has_conflict = has_conflict(cx, &range);
        if has_conflict && !queue::may_wait_to_read(cx.disk, cx.operations, &asked, &range) {
            return Handled::Stalled;
        }
        if let Some(handled) = limits::hold_up(cx, link, request, RequestKind::Read) {
            return handled;
        }
        let id = admit::add_operation(cx, asked, request, group, OperationKind::Read);
        admit::has_begun(cx, &asked);
        if has_conflict {
            cx.wait(id);
        } else {
            self.start(cx, id);
        }
        Handled::Done
    }

    pub(crate) fn handle_allocated(
        &mut self,
        cx: &mut Context<'_, impl Io>,
        link: LinkId,
        request: &Request,
    ) -> Handled {
        let asked = admit::asked(cx, link, request, RequestKind::Allocated);
        let admitted = admit::admit(cx, request);
        let Some(group) = admit::or_refuse(cx, admitted, &asked) else { return Handled::Done };
        // The index has what is durable here, and of what is under way that may come to nothing.
        let range = BlockRange::whole(request.key);
        if !has_conflict(cx, &range) {
            self.tell_allocated(cx, group, asked, &request.key);
            return Handled::Done;
        }
        if !queue::may_wait_in_place(cx.operations, &asked) {
            return Handled::Stalled;
        }
        let id = cx.operations.add_for(OperationKind::Read, Purpose::Client(asked), group, range);
        cx.wait(id);
        Handled::Done
    }

    /// What changed since a snapshot. What is under way in the layers that this is about may come to nothing, and tells nobody
    /// anything: it is asked again. In those of snapshots that is rare.
    pub(crate) fn handle_changed(&mut self, cx: &mut Context<'_, impl Io>, link: LinkId, request: &Request) {
        let asked = admit::asked(cx, link, request, RequestKind::Allocated);
        let admitted = admit::admit(cx, request);
        let Some(group) = admit::or_refuse(cx, admitted, &asked) else { return };
        let ObjectKey { pg, layer, object } = request.key;
        let sees = cx.volumes.sight_of(layer);
        let saw = cx.volumes.sight_of(LayerId(request.origin));
        let is_seen = |layer: LayerId| sees.iter().chain(saw.iter()).any(|span| span.has(layer));
        let is_changing = cx.lines.all(group).filter_map(|id| cx.operations.get(id)).any(|operation| {
            let key = operation.range.key;
            let is_change = operation.kind != OperationKind::Read && operation.purpose != Purpose::Prune;
            is_change && key.object == object && is_seen(key.layer)
        });
        if is_changing {
            let details = RefusalDetails { was_not_begun: true, osd: cx.me.id, ..RefusalDetails::default() };
            return cx.refuse_client(&asked, Status::NotActive, details);
        }
        let mut bits = Box::new([0; CHANGED_BYTES]);
        let (changed, allocated) = bits.split_at_mut(CHANGED_BYTES / 2);
        let store = &cx.disk.store;
        allocated.copy_from_slice(&store.allocated_through(&sees, pg, object));
        if request.origin == 0 {
            changed.copy_from_slice(allocated);
        } else {
            let between = [base::without(&sees, &saw), base::without(&saw, &sees)].concat();
            changed.copy_from_slice(&store.held_by(&between, pg, object));
        }
        self.defer(cx, group, asked, Answer::Changed(bits));
    }

    /// What room a volume takes in an object, by what is durable here.
    pub(crate) fn handle_space(&mut self, cx: &mut Context<'_, impl Io>, link: LinkId, request: &Request) {
        let asked = admit::asked(cx, link, request, RequestKind::Allocated);
        let admitted = admit::admit_look(cx, request);
        let Some(group) = admit::or_refuse(cx, admitted, &asked) else { return };
        let ObjectKey { pg, layer, object } = request.key;
        let views = cx.volumes.map.views_of(layer.volume()).unwrap_or_default();
        let space = cx.disk.store.space(pg, object, &views);
        let alone = space.alone.into_iter().flat_map(|(number, blocks)| [number, blocks]);
        let told = std::iter::once(space.held).chain(alone).flat_map(u32::to_le_bytes);
        self.defer(cx, group, asked, Answer::Space(told.collect()));
    }

    fn tell_allocated(&mut self, cx: &Context<'_, impl Io>, group: u32, asked: Asked, key: &ObjectKey) {
        let sight = cx.volumes.sight_of(key.layer);
        let bits = cx.disk.store.allocated_through(&sight, key.pg, key.object);
        self.defer(cx, group, asked, Answer::Allocated(bits));
    }

    fn defer(&mut self, cx: &Context<'_, impl Io>, group: u32, asked: Asked, answer: Answer) {
        self.deferred.push(Deferred { group, epoch: cx.groups[group].epoch, asked, answer });
    }

    /// Starts a read that waited for its blocks, or answers what is allocated. `false` when there is no memory for it right
    /// now.
    pub(crate) fn start_waiting(&mut self, cx: &mut Context<'_, impl Io>, id: OperationId) -> bool {
        let operation = cx.operations.live(id);
        let (purpose, group, range) = (operation.purpose, operation.group, operation.range);
        match purpose {
            Purpose::Client(asked) if asked.kind == RequestKind::Allocated => {
                self.tell_allocated(cx, group, asked, &range.key);
                cx.forget(id);
            }
            _ if !queue::takes_waiting_read(cx.disk, cx.operations, id, range.block_count) => return false,
            _ => self.start(cx, id),
        }
        true
    }

    /// Looks its blocks up and reads them, unless all are zeros. Buffers are there.
    fn start(&mut self, cx: &mut Context<'_, impl Io>, id: OperationId) {
        let operation = cx.operations.live(id);
        let (purpose, group) = (operation.purpose, operation.group);
        operation.state = OperationState::Reading;
        operation.epoch = cx.groups[group].epoch;
        let mut layer = operation.range.key.layer;
        if cx.me.broken.is(Sabotage::ReadNewest) {
            layer = cx.volumes.of_layer(layer).map_or(layer, |volume| volume.head);
        }
        let sight = match cx.me.broken.is(Sabotage::ReadStraight) {
            true => Sight::straight(layer),
            false => cx.volumes.sight_of(layer),
        };
        cx.disk.look_up_seen(operation, &sight);
        if !operation.is_hole() {
            return cx.read_parts(id);
        }
        if let Purpose::Client(asked) = purpose {
            self.defer(cx, group, asked, Answer::Zeros);
        }
        cx.forget(id);
    }

    /// Sends what was looked up in this turn. The clock was read again since, so a lease that lasts now lasted
    /// when it was looked up.
    pub(crate) fn send_deferred(&mut self, cx: &mut Context<'_, impl Io>) {
        for Deferred { group, epoch, asked, answer } in self.deferred.drain(..) {
            if !may_answer(cx, group, epoch) {
                cx.refuse(Purpose::Client(asked), Status::NotActive);
                continue;
            }
            cx.count_done(&asked, group);
            let reached = cx.groups[group].reached();
            match answer {
                Answer::Zeros => cx.io.send(asked.link, &Outcome::zeros(asked.request, reached)),
                Answer::Allocated(bits) => {
                    cx.io.send(asked.link, &Outcome::done(asked.request, reached, bits.len()));
                    cx.io.send(asked.link, &bits);
                }
                Answer::Space(told) => {
                    cx.io.send(asked.link, &Outcome::space(asked.request, reached, told.len()));
                    cx.io.send(asked.link, &told);
                }
                Answer::Changed(bits) => {
                    cx.io.send(asked.link, &Outcome::done(asked.request, reached, bits.len()));
                    cx.io.send(asked.link, &bits[..]);
                }
            }
        }
    }
}

/// So many messages [`bring_ahead`] looks at.
pub(crate) const AHEAD: usize = 16;

/// Brings what reads among the next messages of a client look up into the processor's cache.
pub(crate) fn bring_ahead(cx: &Context<'_, impl Io>, bytes: &[u8]) {
    cx.disk.store.bring(Request::reads_ahead(bytes).take(AHEAD).flatten());
}

/// Whether something is under way on these blocks, or waits there.
fn has_conflict(cx: &Context<'_, impl Io>, range: &BlockRange) -> bool {
    !cx.breaks(Sabotage::ReadUncommitted) && cx.must_wait(range)
}

/// Whether what was looked up in that epoch may be answered still: a lease that lasts now lasted then, if nobody else was
/// primary since.
fn may_answer(cx: &mut Context<'_, impl Io>, group: u32, epoch: Epoch) -> bool {
    let state = &cx.groups[group];
    let may_lead = state.is_active() && state.epoch == epoch;
    let has_leases = cx.has_leases(group);
    if !has_leases {
        cx.pass(Milestone::LeaseEnded);
    }
    may_lead && has_leases
}

/// The drive gave what a client wants.
pub(crate) fn was_read(cx: &mut Context<'_, impl Io>, id: OperationId) {
    let never_verifies = cx.breaks(Sabotage::NeverVerify);
    let operation = cx.operations.live(id);
    let (purpose, group, epoch) = (operation.purpose, operation.group, operation.epoch);
    let is_verified = match purpose {
        Purpose::Client(asked) => !asked.unverified && !never_verifies,
        _ => true,
    };
    let damage = match is_verified {
        true => operation.first_damage(),
        false => operation.first_failed(),
    };
    if !may_answer(cx, group, epoch) {
        cx.refuse(purpose, Status::NotActive);
        return cx.forget(id);
    }
    if let Some((block, status)) = damage {
        let key = cx.operations.live(id).key_of(block);
        if !cx.wait_for_mend(id, block) {
            cx.report_damage(id, key, block, status);
            cx.forget(id);
        }
        return;
    }
    if let Purpose::Client(asked) = purpose {
        let operation = cx.operations.live(id);
        let body_bytes = usize::from(operation.range.block_count) * (BLOCK_BYTES + size_of::<U32>());
        let reached = cx.groups[group].reached();
        cx.io.send(asked.link, &Outcome::done(asked.request, reached, body_bytes));
        cx.disk.send_content(operation, asked.link, cx.io);
        cx.count_done(&asked, group);
    }
    cx.forget(id);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::io::reads_data;
    use crate::testing::{Alone, PG, Pair, VOLUME, ack};
    use base::OsdId;
    use wire::{Kind, Message};

    #[test]
    fn the_more_clients_are_served_the_more_is_pushed_beside_them() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        let request = alone.request(&BlockRange { key, first_block: 0, block_count: 4 });
        let least_pace = alone.pause_behind_pushes().as_micros();
        assert!((38_000..38_200).contains(&least_pace), "{least_pace} us");
        alone.with(|router, cx| {
            for _ in 0..2000 {
                assert_eq!(router.reads.handle_read(cx, LinkId(7), &request), Handled::Done);
            }
        });
        let Alone { osd, io, now } = &mut alone;
        osd.end_turn(*now, io);
        // Four for each operation and four blocks: of each second four fifths are for pushes, which cost forty.
        let paused = alone.pause_behind_pushes().as_micros();
        assert!((5_000..5_500).contains(&paused), "{paused} us");
    }

    #[test]
    fn a_long_read_of_one_bad_place_comes_to_an_end_and_names_the_place() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        alone.order(key, 10, 3, 0);
        let mut extents = Vec::new();
        alone.osd.shared.disk.store.lookup(&key, 10, 3, &mut extents, &mut Vec::new());
        assert_eq!(extents.len(), 1, "one read of the drive brings all three");
        let location = extents[0].location.unwrap();
        alone.io.bad = Some(u64::from(location.0 + 1) * BLOCK_BYTES as u64);
        let request = alone.request(&BlockRange { key, first_block: 10, block_count: 3 });
        alone.io.sent.clear();
        alone.with(|router, cx| router.reads.handle_read(cx, LinkId(7), &request));
        alone.run();
        let Message::Reply(reply) = wire::parse(&alone.io.sent).unwrap().expect("it is answered").0 else {
            panic!("by a reply")
        };
        assert_eq!(
            (reply.head.status, reply.head.details.offset),
            (Status::DeviceFailed, 11 * BLOCK_BYTES as u32)
        );
        assert_eq!(alone.osd.view().operations_in_flight(), 0);
    }

    /// So much is written that each segment of the drive is used again that nothing needs.
    fn go_through_the_drive(alone: &mut Alone) {
        for _ in 0..160 {
            alone.order(ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 9 }, 0, 60, 0);
        }
    }

    #[test]
    fn a_place_that_is_read_again_block_by_block_is_not_written_to_before_that() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        alone.order(key, 10, 3, 0);
        let mut extents = Vec::new();
        alone.osd.shared.disk.store.lookup(&key, 10, 3, &mut extents, &mut Vec::new());
        let location = extents[0].location.unwrap();
        alone.io.bad = Some(u64::from(location.0 + 1) * BLOCK_BYTES as u64);
        let request = alone.request(&BlockRange { key, first_block: 10, block_count: 3 });
        alone.io.sent.clear();
        alone.with(|router, cx| router.reads.handle_read(cx, LinkId(7), &request));
        let failed = std::mem::take(&mut alone.io.drive);
        assert!(failed.iter().any(|(token, _, result)| reads_data(*token) && result.is_err()));
        alone.io.bad = None;
        // What is there dies before the drive says that it cannot read it.
        alone.order(key, 10, 3, 0);
        go_through_the_drive(&mut alone);
        for (token, buffer, result) in failed {
            alone.osd.handle_file(alone.now, token, buffer, result, &mut alone.io);
        }
        let again = std::mem::take(&mut alone.io.drive);
        assert_eq!(again.iter().filter(|(token, ..)| reads_data(*token)).count(), 3, "one by one");
        go_through_the_drive(&mut alone);
        for (token, buffer, result) in again {
            alone.osd.handle_file(alone.now, token, buffer, result, &mut alone.io);
        }
        let Message::Reply(reply) = wire::parse(&alone.io.to[&LinkId(7)]).unwrap().unwrap().0 else {
            panic!("by a reply")
        };
        assert_eq!((reply.head.status, reply.data[0], reply.data.len()), (Status::Ok, 10, 3 * BLOCK_BYTES));
    }

    #[test]
    fn a_place_that_the_drive_did_not_give_is_not_written_to_while_another_is_awaited() {
        const SEGMENT_BLOCKS: u32 = 128;
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        alone.order(key, 10, 3, 0);
        // So much that the next block lies in another segment.
        (0..3).for_each(|_| alone.order(ObjectKey { object: 9, ..key }, 0, 60, 0));
        alone.order(key, 13, 1, 0);
        let [place, other] = [10, 13].map(|block| alone.osd.shared.disk.location_of(key, block).unwrap().0);
        assert!(place.abs_diff(other) > SEGMENT_BLOCKS);
        alone.io.bad = Some(u64::from(place + 1) * BLOCK_BYTES as u64);
        let request = alone.request(&BlockRange { key, first_block: 10, block_count: 4 });
        alone.with(|router, cx| router.reads.handle_read(cx, LinkId(7), &request));
        alone.io.bad = None;
        let (failed, awaited): (Vec<_>, Vec<_>) =
            std::mem::take(&mut alone.io.drive).into_iter().partition(|(.., result)| result.is_err());
        assert_eq!((failed.len(), awaited.len()), (1, 1));
        for (token, buffer, result) in failed {
            alone.osd.handle_file(alone.now, token, buffer, result, &mut alone.io);
        }
        assert!(alone.io.drive.is_empty(), "it is read again when all of the read were answered");
        // What is there dies before that.
        alone.order(key, 10, 3, 0);
        go_through_the_drive(&mut alone);
        for (token, buffer, result) in awaited {
            alone.osd.handle_file(alone.now, token, buffer, result, &mut alone.io);
        }
        alone.drive_answers();
        let told = alone.io.told(LinkId(7), |message| match message {
            Message::Reply(reply) => {
                let blocks: Vec<u8> = reply.data.chunks(BLOCK_BYTES).map(|block| block[0]).collect();
                Some((reply.head.status, blocks))
            }
            _ => None,
        });
        assert_eq!(told, [(Status::Ok, vec![10, 11, 12, 13])]);
    }

    #[test]
    fn what_is_allocated_is_told_when_what_is_under_way_there_is_committed() {
        let mut pair = Pair::new();
        let write = pair.write_of(10, 7);
        pair.ask(&write);
        pair.run();
        pair.acknowledges = false;
        let zero = pair.request(10).encode(Kind::Zero).to_vec();
        assert_eq!(pair.ask(&zero), None);
        pair.turns(5);
        let key = pair.request(10).key;
        let is_there = |bits: &[u8]| bits[10 / 8] >> (10 % 8) & 1 != 0;
        assert!(!is_there(&pair.alone.osd.store().allocated_bits(&key)), "the trim is durable here");
        let allocated = pair.request(500).encode(Kind::Allocated).to_vec();
        assert_eq!(pair.ask(&allocated), None);
        pair.turns(5);
        assert_eq!(pair.told(), None, "an epoch that begins without the trim would have the block again");
        let ack = ack(pair.received);
        pair.hears(&ack);
        pair.turn();
        let told = &pair.alone.io.to[&LinkId(99)];
        let (_, size) = wire::parse(told).unwrap().expect("of the trim");
        let Message::Reply(reply) = wire::parse(&told[size..]).unwrap().expect("of what is allocated").0
        else {
            panic!("by a reply")
        };
        assert!(reply.head.status == Status::Ok && !is_there(reply.data));
        // Of an object where nothing is under way it is told at once.
        pair.ask(&allocated);
        pair.turn();
        assert_eq!(pair.told(), Some(Status::Ok));
    }

    #[test]
    fn what_was_looked_up_is_told_by_whoever_still_leads_in_that_epoch_and_has_its_leases() {
        const KEY: ObjectKey = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };
        const CLIENT: LinkId = LinkId(7);
        type Change = fn(&mut Alone);
        let changes: [(Change, Status); 4] = [
            (|_| {}, Status::Ok),
            (|alone| alone.with(|_, cx| crate::epoch::end(cx, 0, "a test")), Status::NotActive),
            (|alone| alone.osd.shared.groups[0].epoch.0 += 1, Status::NotActive),
            // A member of which it has no lease.
            (|alone| alone.osd.shared.groups[0].config.in_sync.push(OsdId(1)), Status::NotActive),
        ];
        for (number, (change, expected)) in changes.into_iter().enumerate() {
            let mut alone = Alone::new();
            alone.order(KEY, 0, 1, 0);
            let told = |alone: &mut Alone| {
                alone.io.told(CLIENT, |message| match message {
                    Message::Reply(reply) => Some(reply.head.status),
                    _ => None,
                })
            };
            let [there, hole] = [0, 5].map(|block| alone.request(&BlockRange::one(KEY, block)));
            assert!(alone.osd.next_timeout() > alone.now);
            alone.with(|router, cx| {
                router.reads.handle_read(cx, CLIENT, &there);
                router.reads.handle_read(cx, CLIENT, &hole);
                router.reads.handle_allocated(cx, CLIENT, &there);
            });
            assert!(alone.osd.next_timeout() <= alone.now, "what needs no drive leaves with the next turn");
            change(&mut alone);
            alone.drive_answers();
            assert_eq!(told(&mut alone), [expected], "{number}");
            let Alone { osd, io, now } = &mut alone;
            osd.end_turn(*now, io);
            assert_eq!(told(&mut alone), [expected; 2], "{number}");
            assert_eq!(alone.osd.view().operations_in_flight(), 0);
            assert_eq!(alone.osd.shared.disk.small.available(), 4);
        }
    }
}
