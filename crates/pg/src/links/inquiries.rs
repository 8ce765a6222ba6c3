//! What another OSD is sent and does not take, and what it asks meanwhile.
//!
//! Whoever asks is to take the answers. An OSD that leaves more than [`UNREAD_BYTES_MAX`] of what it was sent has its inquiries
//! wait, here, until it has taken some of it; and of those for which a drive is read no more than [`READS_MAX`] are under way.
//! Of clients' writes that it is a member for, none are taken up by its primary meanwhile (`replication::order`). What it was
//! sent as a learner is not counted in that, and has bounds of its own ([`super::unacknowledged`]).
//!
//! What a group holds is listed with the end of a turn, once in each: all objects of the group are gone through for it, and the
//! keys of many OSDs may be in one hand. Who had that done is the last one the next time.
//!
//! Nothing but its inquiries waits: whatever else it sends is received and handled, orders, acknowledgements and leases. So two
//! OSDs that ask each other for more than they take at a time cannot wait for each other: each goes on taking what the other one
//! sent, and makes room by that. Who has no inquiry to ask any more, and still has itself answered without taking anything, is
//! let go.

use super::{LinkError, Links, Peer};
use base::LinkId;
use std::collections::VecDeque;
use wire::{Check, Inquiry, ListObjects, ObjectEpoch, Query};

/// The most bytes that an OSD may leave unread before its inquiries wait: what a network takes away within some milliseconds,
/// and more than the positions of five hundred groups.
pub(crate) const UNREAD_BYTES_MAX: usize = 32 << 20;

/// The most inquiries of an OSD that wait. Whoever asked asks again, or elsewhere, when a further one is not answered.
const WAITING_MAX: usize = 4096;

/// The most inquiries of an OSD for which a drive is being read.
const READS_MAX: usize = 64;

/// So many messages are handled of an OSD that leaves too much unread all the while: each may be answered, by as many bytes as
/// an acknowledgement has.
const MESSAGES_MAX: usize = 1 << 20;

/// What another OSD asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asks {
    Position(Query),
    Objects(ListObjects),
    Blocks(ObjectEpoch),
    Content(Inquiry),
    Check(Check),
}

/// See the module's documentation. Of one link.
#[derive(Debug, Default)]
pub(crate) struct Inquiries {
    waiting: VecDeque<Asks>,
    /// Those for which the drive is being read.
    reads: usize,
    /// Messages that were handled since it began to leave too much unread.
    messages: usize,
}

impl Inquiries {
    /// Whether one more is answered now, to whoever leaves so many bytes unread.
    pub(crate) fn has_room(&self, unread_bytes: usize) -> bool {
        unread_bytes <= UNREAD_BYTES_MAX && self.reads < READS_MAX
    }

    /// Whether an inquiry that comes now is answered at once: else it is to wait.
    pub(crate) fn takes(&self, unread_bytes: usize) -> bool {
        self.waiting.is_empty() && self.has_room(unread_bytes)
    }

    /// Whether some wait.
    pub(crate) fn are_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether the next one that waits asks for objects.
    pub(crate) fn lists_next(&self) -> bool {
        matches!(self.waiting.front(), Some(Asks::Objects(_)))
    }

    /// The next one that waited and is to be answered now.
    pub(crate) fn next(&mut self, unread_bytes: usize) -> Option<Asks> {
        if self.has_room(unread_bytes) { self.waiting.pop_front() } else { None }
    }

    /// The drive is read for one.
    pub(crate) fn read_begins(&mut self) {
        self.reads += 1;
    }

    /// It was read, and the inquiry answered.
    pub(crate) fn read_ended(&mut self) {
        self.reads = self.reads.saturating_sub(1);
    }
}

/// What an OSD asks waits, unless too much does.
pub(crate) fn wait(links: &mut Links, link: LinkId, asks: Asks) {
    let Some(peer) = links.osd_mut(link) else { return };
    if peer.inquiries.waiting.len() < WAITING_MAX {
        peer.inquiries.waiting.push_back(asks);
    }
    if !links.with_inquiries.contains(&link) {
        links.with_inquiries.push(link);
    }
}

/// Whether another OSD is at the end of a link that leaves too much unread: so many bytes.
pub(crate) fn is_behind(links: &mut Links, link: LinkId, unread_bytes: usize) -> bool {
    let Some(peer) = links.osd_mut(link) else { return false };
    let is_behind = unread_bytes > UNREAD_BYTES_MAX;
    if !is_behind {
        peer.inquiries.messages = 0;
    }
    is_behind
}

/// Counts a message of an OSD that leaves too much unread.
///
/// # Errors
/// If it has itself answered all the while, and takes nothing.
pub(crate) fn count(links: &mut Links, link: LinkId) -> Result<(), LinkError> {
    let Some(peer) = links.osd_mut(link) else { return Ok(()) };
    peer.inquiries.messages += 1;
    if peer.inquiries.messages > MESSAGES_MAX {
        return Err(LinkError::TakesNothing(peer.osd));
    }
    Ok(())
}

/// Checks that what waits of each OSD, and is under way, is within these bounds.
///
/// # Errors
/// How much it is.
pub(crate) fn check_bounds(links: &Links) -> Result<(), String> {
    for (osd, link) in links.osds() {
        let Some(Peer::Osd(peer)) = links.get(link) else { continue };
        let Inquiries { waiting, reads, .. } = &peer.inquiries;
        if waiting.len() > WAITING_MAX || *reads > READS_MAX {
            return Err(format!("{} inquiries of {osd} wait, and {reads} are read for", waiting.len()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::links::OsdLink;
    use crate::links::lease::LEASE;
    use crate::osd::Progress;
    use crate::request::queue::WORK_MAX;
    use crate::testing::{Alone, PG, VOLUME};
    use base::map::{OsdInfo, PgConfig};
    use base::{BlockRange, Epoch, Instant, ObjectKey, OsdId, PgId};
    use std::sync::Arc;
    use wire::{Lease, Message, Status};

    const PEER: OsdId = OsdId(1);
    const KEY: ObjectKey = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };

    /// An OSD that holds a block of a group which another one leads, by that epoch, and the link to that one.
    fn led() -> (Alone, LinkId, Epoch) {
        let mut alone = Alone::new();
        alone.write(KEY);
        let link = alone.connect(PEER);
        let epoch = Epoch(alone.osd.shared.groups[0].epoch.0 + 1);
        alone.is_led_by(PEER, epoch);
        alone.query(link, PG, 1, epoch);
        alone.io.to.clear();
        (alone, link, epoch)
    }

    fn fetch(request: u64, epoch: Epoch) -> Vec<u8> {
        Inquiry { request, range: BlockRange::one(KEY, 0), epoch }.encode().to_vec()
    }

    fn comes(alone: &mut Alone, link: LinkId, bytes: &[u8]) {
        let progress = alone.osd.handle_bytes(alone.now, link, bytes, &mut alone.io).unwrap();
        assert_eq!(progress, Progress { consumed: bytes.len(), is_stalled: false });
    }

    fn ends_turn(alone: &mut Alone) {
        alone.osd.end_turn(alone.now, &mut alone.io);
    }

    /// What an OSD was told since the last time: which fetches were answered, and how many leases granted.
    fn told(alone: &mut Alone, link: LinkId) -> (Vec<u64>, usize) {
        let mut granted = 0;
        let answered = alone.io.told(link, |message| match message {
            Message::Fetched(fetched) => {
                assert_eq!(fetched.head.status, Status::Ok);
                Some(fetched.head.inquiry.request)
            }
            Message::Lease(lease) if lease.granted_ttl_ms > 0 => {
                granted += 1;
                None
            }
            _ => None,
        });
        (answered, granted)
    }

    #[test]
    fn who_leaves_too_much_unread_gets_no_answers_and_is_heard_otherwise() {
        let (mut alone, link, epoch) = led();
        alone.io.unread.insert(link, UNREAD_BYTES_MAX + 1);
        let lease = Lease { ttl_ms: LEASE.as_millis() as u32, stamp: 5, ..Lease::default() }.encode();
        for request in 0..3 {
            comes(&mut alone, link, &[&fetch(request, epoch)[..], &lease].concat());
            ends_turn(&mut alone);
            alone.drive_answers();
            assert_eq!(told(&mut alone, link), (vec![], 1), "what comes behind an inquiry is handled");
        }
        // It has taken some of it: what it asked first is answered first.
        alone.io.unread.remove(&link);
        comes(&mut alone, link, &fetch(3, epoch));
        ends_turn(&mut alone);
        alone.drive_answers();
        assert_eq!(told(&mut alone, link), (vec![0, 1, 2, 3], 0));
        comes(&mut alone, link, &fetch(4, epoch));
        alone.drive_answers();
        assert_eq!(told(&mut alone, link).0, [4], "nobody is before it any more");
    }

    #[test]
    fn a_position_is_told_to_who_takes_what_it_was_sent() {
        let (mut alone, link, epoch) = led();
        alone.io.unread.insert(link, UNREAD_BYTES_MAX + 1);
        alone.query(link, PG, 1, epoch);
        ends_turn(&mut alone);
        assert_eq!(alone.io.positions_told(link), 0);
        alone.io.unread.remove(&link);
        ends_turn(&mut alone);
        assert_eq!(alone.io.positions_told(link), 1);
    }

    #[test]
    fn no_more_inquiries_of_an_osd_are_read_for_than_may_be_and_all_are_answered() {
        let (mut alone, link, epoch) = led();
        let count = 3 * READS_MAX as u64;
        assert!(count < WORK_MAX as u64, "one turn brings them all");
        let all: Vec<u8> = (0..count).flat_map(|request| fetch(request, epoch)).collect();
        comes(&mut alone, link, &all);
        let mut answered = Vec::new();
        while answered.len() < count as usize {
            assert_eq!(alone.osd.view().check_bounds(), Ok(()));
            assert!(!alone.io.drive.is_empty() && alone.io.drive.len() <= READS_MAX);
            alone.drive_answers();
            answered.extend(told(&mut alone, link).0);
            ends_turn(&mut alone);
        }
        assert_eq!(answered, (0..count).collect::<Vec<_>>());
    }

    #[test]
    fn objects_are_listed_once_in_a_turn_and_by_turns_for_all_who_ask() {
        let mut alone = Alone::with_groups(2);
        let (groups, leaders) = ([PG, PgId { index: 1, ..PG }], [PEER, OsdId(2)]);
        let newest = alone.osd.shared.groups.iter().map(|group| group.epoch.0).max();
        let epoch = Epoch(newest.unwrap() + 1);
        let mut map = (*alone.osd.shared.volumes.map).clone();
        map.revision += 1;
        for (pg, primary) in groups.into_iter().zip(leaders) {
            map.osds.insert(primary, OsdInfo { bytes: 1 << 30, ..OsdInfo::default() });
            let in_sync = vec![primary, OsdId(0)];
            map.targets.insert(pg, in_sync.clone());
            map.pgs.insert(pg, PgConfig { epoch, primary, in_sync, ..PgConfig::default() });
        }
        alone.osd.handle_map(alone.now, Arc::new(map), &mut alone.io);
        let links = leaders.map(|osd| alone.connect(osd));
        for (pg, link) in groups.into_iter().zip(links) {
            alone.query(link, pg, 2, epoch);
        }
        let list = |pg| ListObjects { pg, epoch, after: None }.encode();
        // For one that leads nothing, nothing is gone through.
        let stranger = alone.connect(OsdId(3));
        comes(&mut alone, stranger, &list(PG).repeat(3));
        comes(&mut alone, links[0], &list(groups[0]).repeat(3));
        comes(&mut alone, links[1], &list(groups[1]));
        let listed = |alone: &mut Alone| {
            ends_turn(alone);
            let is_list = |message: Message<'_>| matches!(message, Message::Objects(_)).then_some(());
            links.map(|link| alone.io.told(link, is_list).len())
        };
        assert_eq!(listed(&mut alone), [1, 0]);
        assert!(alone.osd.next_timeout() <= alone.now, "it goes on at once");
        assert_eq!(listed(&mut alone), [0, 1], "who asks for more of them comes behind the others");
        assert_eq!(listed(&mut alone), [1, 0]);
        assert_eq!(listed(&mut alone), [1, 0]);
        assert!(alone.osd.shared.links.with_inquiries.is_empty());
    }

    #[test]
    fn no_more_inquiries_wait_than_may_and_none_outlasts_its_link() {
        let (mut alone, link, epoch) = led();
        alone.io.unread.insert(link, UNREAD_BYTES_MAX + 1);
        for request in 0..2 * WAITING_MAX as u64 {
            comes(&mut alone, link, &fetch(request, epoch));
        }
        assert_eq!(alone.osd.shared.links.osd_mut(link).unwrap().inquiries.waiting.len(), WAITING_MAX);
        assert_eq!(alone.osd.shared.links.with_inquiries, [link], "once, however much it asks");
        assert_eq!(alone.osd.view().check_bounds(), Ok(()));
        alone.osd.handle_closed(alone.now, link, "a test", &mut alone.io);
        alone.io.unread.remove(&link);
        ends_turn(&mut alone);
        assert!(alone.io.drive.is_empty() && alone.osd.shared.links.with_inquiries.is_empty());
    }

    #[test]
    fn who_takes_nothing_and_still_has_itself_answered_is_let_go() {
        let (mut alone, link, _) = led();
        let lease = Lease { ttl_ms: 900, stamp: 5, ..Lease::default() }.encode();
        let count = |alone: &mut Alone| alone.osd.shared.links.osd_mut(link).unwrap().inquiries.messages;
        alone.io.unread.insert(link, UNREAD_BYTES_MAX + 1);
        comes(&mut alone, link, &lease.repeat(3));
        assert_eq!(count(&mut alone), 3);
        alone.io.unread.remove(&link);
        comes(&mut alone, link, &lease);
        assert_eq!(count(&mut alone), 0, "it has taken some of it");
        alone.io.unread.insert(link, UNREAD_BYTES_MAX + 1);
        alone.osd.shared.links.osd_mut(link).unwrap().inquiries.messages = MESSAGES_MAX - 1;
        comes(&mut alone, link, &lease);
        let refused = alone.osd.handle_bytes(alone.now, link, &lease, &mut alone.io);
        assert!(matches!(refused, Err(LinkError::TakesNothing(PEER))), "{refused:?}");
    }

    #[test]
    fn who_leaves_no_more_unread_than_it_may_is_answered_at_once() {
        let (mut alone, link, epoch) = led();
        alone.io.unread.insert(link, UNREAD_BYTES_MAX);
        alone.osd.shared.links.osd_mut(link).unwrap().inquiries.messages = 5;
        comes(&mut alone, link, &fetch(0, epoch));
        alone.drive_answers();
        assert_eq!(told(&mut alone, link).0, [0]);
        assert_eq!(alone.osd.shared.links.osd_mut(link).unwrap().inquiries.messages, 0);
    }

    #[test]
    fn each_inquiry_that_was_read_for_makes_room_for_one_more() {
        let (mut alone, link, epoch) = led();
        let all: Vec<u8> = (0..2 * READS_MAX as u64).flat_map(|request| fetch(request, epoch)).collect();
        comes(&mut alone, link, &all);
        assert_eq!(alone.io.drive.len(), READS_MAX);
        let rest = alone.io.drive.split_off(3);
        alone.drive_answers();
        alone.io.drive.extend(rest);
        assert_eq!(told(&mut alone, link).0.len(), 3);
        ends_turn(&mut alone);
        assert_eq!(alone.io.drive.len(), READS_MAX);
    }

    #[test]
    fn of_what_an_osd_asks_only_the_next_list_is_left_for_the_next_turn() {
        let (mut alone, link, epoch) = led();
        let list = ListObjects { pg: PG, epoch, after: None }.encode();
        comes(&mut alone, link, &[&list[..], &fetch(0, epoch), &list, &fetch(1, epoch)].concat());
        for _ in 0..2 {
            ends_turn(&mut alone);
            assert_eq!(alone.io.drive.len(), 1, "what is behind a list is read for at once");
            let is_list = |message: Message<'_>| matches!(message, Message::Objects(_)).then_some(());
            assert_eq!(alone.io.told(link, is_list).len(), 1);
            alone.drive_answers();
        }
    }

    #[test]
    fn more_inquiries_of_an_osd_than_may_wait_or_be_read_for_are_found() {
        let mut links = Links::default();
        for osd in [1, 2] {
            links.insert_osd(LinkId(osd), OsdLink::new(OsdId(osd as u32), None, Instant::default()));
        }
        let mut is_sound = |waiting: usize, reads: usize| {
            let inquiries = &mut links.osd_mut(LinkId(2)).unwrap().inquiries;
            let asks = Asks::Objects(ListObjects { pg: PG, epoch: Epoch(1), after: None });
            (inquiries.waiting, inquiries.reads) = (vec![asks; waiting].into(), reads);
            check_bounds(&links).is_ok()
        };
        assert!(is_sound(0, 0) && is_sound(WAITING_MAX, READS_MAX));
        assert!(!is_sound(WAITING_MAX + 1, 0) && !is_sound(0, READS_MAX + 1));
    }
}
