//! Reads of clients, and their questions of what is allocated.
//!
//! What is read is served only while the leases last, looked at when the answer is sent. What was looked up without the
//! drive is answered with the end of the turn, when the clock was read again.

use super::{admit, queue};
use crate::broken::Sabotage;
use crate::context::{Context, Handled};
use crate::io::Io;
use crate::journal::Milestone;
use crate::operation::{Asked, OperationId, OperationKind, OperationState, Purpose};
use base::figures::RequestKind;
use base::{BLOCK_BYTES, Epoch, LinkId, OBJECT_BLOCKS};
use wire::{Outcome, Request, Status};
use zerocopy::little_endian::U32;

/// A reply that was looked up and leaves with the end of the turn, if the leases still last then.
#[derive(Clone, Copy, Debug)]
enum Answer {
    Zeros,
    Allocated([u8; OBJECT_BLOCKS / 8]),
}

/// See [`Answer`].
#[derive(Clone, Copy, Debug)]
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
        if !queue::takes_read(cx.disk, request) {
            return Handled::Stalled;
        }
        let has_conflict =
            !cx.breaks(Sabotage::ReadUncommitted) && cx.must_wait(group, &admit::range_of(request));
        let id = admit::add_operation(cx, asked, request, group, OperationKind::Read);
        if has_conflict {
            cx.groups[group].line.waiting.push_back(id);
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
        if let Some(group) = admit::or_refuse(cx, admitted, &asked) {
            let bits = cx.disk.store.allocated_bits(&request.key);
            self.defer(cx, group, asked, Answer::Allocated(bits));
        }
        Handled::Done
    }

    fn defer(&mut self, cx: &Context<'_, impl Io>, group: u32, asked: Asked, answer: Answer) {
        self.deferred.push(Deferred { group, epoch: cx.groups[group].epoch, asked, answer });
    }

    /// Looks its blocks up and reads them, unless all are zeros. Buffers are there.
    pub(crate) fn start(&mut self, cx: &mut Context<'_, impl Io>, id: OperationId) {
        let operation = cx.operations.live(id);
        let (purpose, group) = (operation.purpose, operation.group);
        operation.state = OperationState::Reading;
        operation.epoch = cx.groups[group].epoch;
        cx.disk.look_up(operation);
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
            match answer {
                Answer::Zeros => cx.io.send(asked.link, &Outcome::zeros(asked.request)),
                Answer::Allocated(bits) => {
                    cx.io.send(asked.link, &Outcome::done(asked.request, bits.len()));
                    cx.io.send(asked.link, &bits);
                }
            }
        }
    }
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
    let operation = cx.operations.live(id);
    let damage = operation.first_damage();
    let (purpose, group, epoch) = (operation.purpose, operation.group, operation.epoch);
    if !may_answer(cx, group, epoch) {
        cx.refuse(purpose, Status::NotActive);
        return cx.forget(id);
    }
    if let Some((block, status)) = damage {
        if !cx.wait_for_mend(id, block) {
            cx.report_damage(id, block, status);
            cx.forget(id);
        }
        return;
    }
    if let Purpose::Client(asked) = purpose {
        let operation = cx.operations.live(id);
        let body_bytes = usize::from(operation.range.block_count) * (BLOCK_BYTES + size_of::<U32>());
        cx.io.send(asked.link, &Outcome::done(asked.request, body_bytes));
        cx.disk.send_content(operation, asked.link, cx.io);
        cx.count_done(&asked, group);
    }
    cx.forget(id);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::testing::{Alone, PG, VOLUME};
    use base::{Generation, ObjectKey};
    use wire::Message;

    #[test]
    fn a_long_read_of_one_bad_place_comes_to_an_end_and_names_the_place() {
        let mut alone = Alone::new();
        let key = ObjectKey { pg: PG, volume: VOLUME, object: 3 };
        alone.order(key, 10, 3, 0);
        let mut extents = Vec::new();
        alone.osd.shared.disk.store.lookup(&key, 10, 3, &mut extents, &mut Vec::new());
        assert_eq!(extents.len(), 1, "one read of the drive brings all three");
        let location = extents[0].location.unwrap();
        alone.io.bad = Some(u64::from(location.0 + 1) * BLOCK_BYTES as u64);
        let request = wire::Request {
            request: 1,
            key,
            offset: 10 * BLOCK_BYTES as u32,
            length: 3 * BLOCK_BYTES as u32,
            epoch: alone.osd.shared.groups[0].epoch,
            generation: Generation(1),
            origin: 0,
            is_again: false,
        };
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
}
