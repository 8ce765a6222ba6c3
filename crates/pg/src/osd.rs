//! The OSD as whoever drives it sees it.

use crate::broken::Broken;
#[cfg(feature = "broken")]
use crate::broken::Sabotage;
use crate::context::{Context, Handled, Me, Rates, Shared, Turn};
use crate::damage::Damage;
use crate::disk::Disk;
use crate::epoch::{self, claim};
use crate::group::Groups;
use crate::group::line::Lines;
use crate::heal::renewal;
use crate::io::{Io, reads, reads_data};
use crate::journal::Journal;
use crate::ledger::Ledger;
use crate::links::access::Credential;
use crate::links::backlog::Backlog;
use crate::links::inquiries;
use crate::links::lease::Leases;
use crate::links::presence::Presence;
use crate::links::{LinkError, Links, Peer};
use crate::operation::Operations;
use crate::report::{LostBlock, ScrubReport};
use crate::request::{queue, read};
use crate::router::Router;
use crate::view::View;
use crate::volumes::Volumes;
use base::map::{ClusterMap, PgConfig};
use base::{Buffer, Instant, LinkId, OsdId, PgId, Tenant};
use std::sync::Arc;
use store::{DeviceError, Store};
use wire::{Hello, Message, Refused, Role, VERSIONS};

/// Sizes of an OSD.
#[derive(Clone, Debug)]
pub struct OsdOptions {
    /// Buffers of one block, for reads of one.
    pub small_buffers: usize,
    /// Buffers for the largest message.
    pub large_buffers: usize,
    /// Breaks a promise on purpose, so that tests can show that they would notice.
    #[cfg(feature = "broken")]
    #[doc(hidden)]
    pub sabotage: Option<Sabotage>,
}

impl Default for OsdOptions {
    fn default() -> OsdOptions {
        OsdOptions {
            small_buffers: 1024,
            large_buffers: 64,
            #[cfg(feature = "broken")]
            sabotage: None,
        }
    }
}

impl OsdOptions {
    fn broken(&self) -> Broken {
        #[cfg(feature = "broken")]
        return Broken::by(self.sabotage);
        #[cfg(not(feature = "broken"))]
        Broken::default()
    }
}

/// What became of the bytes that a link brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// How many were consumed, from the front.
    pub consumed: usize,
    /// A message is there and cannot be handled yet: present the rest again after the next turn.
    pub is_stalled: bool,
}

/// An OSD. See the crate's documentation.
///
/// Before work starts, [`Self::buffers_mut`]. Then tell it what happens by `handle_*`, `begin_*`, [`Self::fail_drive`] and
/// [`Self::renew_superblocks`], in any order, and call [`Self::end_turn`] once for each turn, and by
/// [`Self::next_timeout`] at the latest. What it is like is shown by [`Self::view`].
#[derive(Debug)]
pub struct Osd {
    pub(crate) me: Me,
    pub(crate) now: Instant,
    pub(crate) shared: Shared,
    pub(crate) router: Router,
}

impl Osd {
    /// An OSD over an opened store.
    #[must_use]
    pub fn new(store: Store, options: &OsdOptions) -> Osd {
        let identity = store.identity();
        let broken = options.broken();
        let mut journal = Journal::default();
        let unreadable_blocks = store.statistics().unreadable_blocks;
        if unreadable_blocks > 0 {
            journal.note(format!(
                "{unreadable_blocks} of the blocks at which its log ends could not be read at the start: what it \
                 acknowledged last may be missing here; the other members have it"
            ));
        }
        Osd {
            me: Me { id: identity.osd, cluster: identity.cluster, broken },
            now: Instant::default(),
            shared: Shared {
                turn: Turn::default(),
                disk: Disk::new(store, options.small_buffers, options.large_buffers),
                ledger: Ledger::default(),
                links: Links::default(),
                presence: Presence::new(Leases::new(broken)),
                groups: Groups::default(),
                lines: Lines::default(),
                operations: Operations::default(),
                volumes: Volumes::default(),
                damage: Damage::default(),
                rates: Rates::default(),
                journal,
            },
            router: Router::default(),
        }
    }

    /// It at this moment: its mechanisms, and what those have of it.
    pub(crate) fn at<'a, I: Io>(
        &'a mut self,
        now: Instant,
        io: &'a mut I,
    ) -> (&'a mut Router, Context<'a, I>) {
        self.now = now;
        let shared = &mut self.shared;
        shared.operations.under_way.turn(now);
        let context = Context {
            me: self.me,
            now,
            turn: &mut shared.turn,
            disk: &mut shared.disk,
            ledger: &mut shared.ledger,
            links: &mut shared.links,
            presence: &mut shared.presence,
            groups: &mut shared.groups,
            lines: &mut shared.lines,
            operations: &mut shared.operations,
            volumes: &mut shared.volumes,
            damage: &mut shared.damage,
            rates: &mut shared.rates,
            journal: &mut shared.journal,
            io,
        };
        (&mut self.router, context)
    }

    /// Its id.
    #[must_use]
    pub fn id(&self) -> OsdId {
        self.me.id
    }

    /// Its store, for figures.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.shared.disk.store
    }

    /// What it is like, for operators and tests.
    #[must_use]
    pub fn view(&self) -> View<'_> {
        View { me: self.me, shared: &self.shared, router: &self.router }
    }

    /// All memory that drives read and write, to be registered before work starts.
    pub fn buffers_mut(&mut self) -> impl Iterator<Item = &mut Buffer> {
        self.shared.disk.buffers_mut()
    }

    /// Whether a shutdown that was begun is done.
    #[must_use]
    pub fn is_shut_down(&self) -> bool {
        self.shared.turn.is_shut_down
    }

    /// When [`Self::end_turn`] must be called at the latest.
    #[must_use]
    pub fn next_timeout(&self) -> Instant {
        // What was looked up at the end of a turn leaves with the next.
        if self.router.reads.is_owing() || self.shared.turn.next_is_due {
            return self.now;
        }
        let Rates { pace, limits, mclock } = &self.shared.rates;
        let due = [self.router.scrubs.next_at, pace.next_at, limits.next_at(), mclock.next_at];
        due.into_iter().flatten().fold(self.shared.turn.next_tick, Instant::min)
    }

    /// Stops serving and makes the next start a quick one. `is_shut_down` tells when it is done.
    pub fn begin_shutdown(&mut self, io: &mut impl Io) {
        let (router, mut cx) = self.at(self.now, io);
        cx.turn.is_shutting_down = true;
        for index in cx.groups.indices() {
            epoch::end(&mut cx, index, "the OSD is shutting down");
        }
        cx.disk.begin_shutdown();
        router.perform(&mut cx);
    }

    /// Somebody connected who proved to have the key of this principal. Without a credential whoever connects is taken to be
    /// who it says it is: only a simulator, or a test, can know that.
    ///
    /// # Errors
    /// If its key is gone by now, or has too many links: this one is to be refused and closed.
    pub fn handle_accepted(
        &mut self,
        link: LinkId,
        mut credential: Option<Credential>,
    ) -> Result<(), LinkError> {
        let Shared { links, volumes, .. } = &mut self.shared;
        if let Some(credential) = &mut credential {
            links.admit_one_more(credential, &volumes.map)?;
            links.tenants.enter(link, credential.principal.public_key);
        }
        links.insert(link, Peer::Unknown(credential));
        Ok(())
    }

    /// Whoever is at the end of an outgoing link proved to have the key of this principal.
    ///
    /// # Errors
    /// If that key is gone by now: the link is to be closed.
    pub fn handle_proved(&mut self, link: LinkId, mut credential: Credential) -> Result<(), LinkError> {
        credential.admit_still(&self.shared.volumes.map)?;
        if let Some(peer) = self.shared.links.osd_mut(link) {
            peer.credential = Some(credential);
        }
        Ok(())
    }

    /// An outgoing link stands.
    pub fn handle_connected(&mut self, link: LinkId, io: &mut impl Io) {
        if let Some(target) = self.shared.links.osd_at(link) {
            let (role, cluster) = (Role::Osd(self.me.id), self.me.cluster);
            io.send(link, &Hello { role, cluster, target, versions: VERSIONS }.encode());
        }
    }

    /// Whether the link has said who it is; one that does not within some seconds should be closed.
    #[must_use]
    pub fn is_greeted(&self, link: LinkId) -> bool {
        !matches!(self.shared.links.get(link), None | Some(Peer::Unknown(_)))
    }

    /// With whose links one shares what there is for clients; `None` if it is another OSD's, or gone.
    #[must_use]
    pub fn tenant(&self, link: LinkId) -> Option<Tenant> {
        match self.shared.links.get(link) {
            None | Some(Peer::Osd(_)) => None,
            Some(_) => Some(self.shared.links.tenants.of(link)),
        }
    }

    /// Whether something that a tenant sent had to wait since then.
    #[must_use]
    pub fn was_held_back(&self, tenant: Tenant, since: Instant) -> bool {
        self.shared.links.tenants.was_held_back(tenant, since)
    }

    /// A link ended.
    pub fn handle_closed(&mut self, now: Instant, link: LinkId, reason: &str, io: &mut impl Io) {
        let (_, mut cx) = self.at(now, io);
        epoch::link_ended(&mut cx, link, reason);
    }

    /// Bytes came, or some that came before are presented again. Handles whole messages from the front, no more than some
    /// hundred; then it is others' turn.
    ///
    /// # Errors
    /// When the link is of no use any more: tell the peer with [`wire::Refused`] and close it.
    pub fn handle_bytes(
        &mut self,
        now: Instant,
        link: LinkId,
        bytes: &[u8],
        io: &mut impl Io,
    ) -> Result<Progress, LinkError> {
        let (router, mut cx) = self.at(now, io);
        cx.links.came(link, bytes.len(), now);
        let progress = handle_messages(router, &mut cx, link, bytes)?;
        cx.links.are_left(link, bytes.len() - progress.consumed);
        Ok(progress)
    }

    /// A drive operation ended.
    pub fn handle_file(
        &mut self,
        now: Instant,
        token: u64,
        buffer: Option<Buffer>,
        result: Result<(), String>,
        io: &mut impl Io,
    ) {
        let (router, mut cx) = self.at(now, io);
        cx.disk.patience.has_answered(token);
        if let Err(error) = &result
            && reads(token)
        {
            cx.note(format!("a read of the drive failed: {error}"));
        }
        if reads_data(token) {
            router.part_was_read(&mut cx, token, buffer.clone().filter(|_| result.is_ok()));
            router.settle(&mut cx);
        } else {
            cx.disk.ended(token, buffer.as_ref(), result.map_err(DeviceError));
        }
        if let Some(buffer) = buffer {
            cx.disk.put(buffer);
        }
        router.perform(&mut cx);
    }

    /// A buffer that was shared with the network is done with there.
    pub fn put_buffer(&mut self, buffer: Buffer) {
        self.shared.disk.put(buffer);
    }

    /// The end of a turn: batches go to the drive, acknowledgements to the primaries.
    pub fn end_turn(&mut self, now: Instant, io: &mut impl Io) {
        let (router, mut cx) = self.at(now, io);
        let was_left = std::mem::take(&mut cx.turn.goes_on);
        router.end_turn(&mut cx);
        cx.turn.next_is_due = was_left | std::mem::take(&mut cx.turn.goes_on);
        // There may be room now for what there was none for.
        for link in std::mem::take(&mut cx.links.with_aside) {
            match take_up(router, &mut cx, link) {
                Ok(false) => {}
                Ok(true) => cx.links.with_aside.push(link),
                Err(error) => {
                    let reason = error.to_string();
                    cx.note(format!("a connection is refused: {reason}"));
                    cx.io.send(link, &Refused { reason: &reason }.encode());
                    cx.io.close(link, &reason);
                    epoch::link_ended(&mut cx, link, &reason);
                }
            }
        }
    }

    /// A newer map.
    pub fn handle_map(&mut self, now: Instant, map: Arc<ClusterMap>, io: &mut impl Io) {
        let (router, mut cx) = self.at(now, io);
        router.map(&mut cx, &map);
    }

    /// The registry answered a sign of life. When this is not told, nor a map comes, for some seconds, no epoch is ended that
    /// could go on.
    pub fn handle_registry(&mut self, now: Instant) {
        if self.shared.presence.registry_answered(now) {
            // Something may have waited for it.
            self.shared.turn.next_tick = now;
        }
    }

    /// The registry's answer to a proposal: the configuration that stands now, or `None` when the proposal came
    /// to nothing.
    pub fn handle_proposal(&mut self, now: Instant, pg: PgId, accepted: Option<PgConfig>, io: &mut impl Io) {
        let (router, mut cx) = self.at(now, io);
        claim::handle_proposal(&mut cx, pg, accepted);
        router.settle(&mut cx);
    }

    /// Scrubs a group, when those asked for before it are done. `false` if this OSD does not lead it, or too many wait.
    pub fn begin_scrub(&mut self, pg: PgId, is_deep: bool) -> bool {
        let Shared { groups, turn, .. } = &mut self.shared;
        let is_led = groups.find(pg).is_some_and(|index| groups[index].is_active());
        if !is_led {
            return false;
        }
        if self.router.scrubs.does(pg, is_deep) {
            return true;
        }
        turn.next_tick = self.now;
        self.router.scrubs.enqueue(pg, is_deep)
    }

    /// What scrubs found that ended since the last call.
    pub fn take_scrub_reports(&mut self) -> Vec<ScrubReport> {
        self.router.scrubs.take_reports()
    }

    /// The blocks of the groups this OSD is primary of that no member has a sound copy of, in order.
    pub fn lost_blocks(&mut self) -> Vec<LostBlock> {
        self.shared.damage.lost_blocks(&mut self.shared.disk)
    }

    /// The groups of which this OSD is the primary, whether it serves them or not, and that want a sound copy of a block, in order:
    /// nobody who answered had one.
    pub fn groups_in_want(&mut self) -> Vec<PgId> {
        let me = self.id();
        let Shared { damage, disk, groups, .. } = &mut self.shared;
        let is_its_own = |pg: &PgId| groups.find(*pg).is_some_and(|index| groups[index].config.primary == me);
        damage.groups_in_want(disk).into_iter().filter(is_its_own).collect()
    }

    /// Whoever drives this OSD finds that its drive cannot be used any more: it takes part in nothing from now on, and the
    /// others go on without it.
    pub fn fail_drive(&mut self, now: Instant, reason: &str, io: &mut impl Io) {
        let (router, mut cx) = self.at(now, io);
        if cx.disk.store.failure().is_some() {
            return;
        }
        cx.note(format!("the drive failed: {reason}"));
        cx.disk.fail(reason);
        router.perform(&mut cx);
        self.shared.turn.next_tick = now;
    }

    /// Whoever drives this OSD has begun so many reads of the drive for itself, and so many of them have ended, however: they tell
    /// whether the drive does anything.
    pub fn note_own_reads(&mut self, begun: usize, ended: usize) {
        let patience = &mut self.shared.disk.patience;
        (0..begun).for_each(|_| patience.asks_to_read());
        (0..ended).for_each(|_| patience.has_read());
    }

    /// The place of a superblock holds something else: what a start needs is written anew.
    pub fn renew_superblocks(&mut self, offset: u64) {
        renewal::renew_superblocks(&mut self.shared.journal, &mut self.shared.disk, offset);
    }
}

/// Handles the whole messages at the front of what a link brought.
fn handle_messages(
    router: &mut Router,
    cx: &mut Context<'_, impl Io>,
    link: LinkId,
    bytes: &[u8],
) -> Result<Progress, LinkError> {
    let mut has_aside = take_up(router, cx, link)?;
    let mut was_in_the_way = is_in_the_way(cx, link);
    let unread_bytes = cx.unread_bytes(link);
    let is_behind = inquiries::is_behind(cx.links, link, unread_bytes);
    let (mut consumed, mut work, mut done) = (0, 0, 0usize);
    loop {
        if work >= queue::WORK_MAX {
            let is_stalled = consumed < bytes.len();
            cx.turn.goes_on |= is_stalled;
            return Ok(Progress { consumed, is_stalled });
        }
        let is_client = matches!(cx.links.get(link), Some(Peer::Client(_)));
        if is_client && !queue::takes_client(cx.links.tenants.links_beside(link), cx.io.unsent_bytes(link)) {
            cx.links.tenants.note_held_back(link, cx.now);
            return Ok(Progress { consumed, is_stalled: true });
        }
        let Some((message, size)) = wire::parse(&bytes[consumed..])? else {
            return Ok(Progress { consumed, is_stalled: false });
        };
        if is_behind {
            inquiries::count(cx.links, link)?;
        }
        work += queue::work_of(&message);
        let mut handled = Handled::Stalled;
        let is_lease = matches!(message, Message::Lease(_));
        if !has_aside || is_lease && lets_leases_by(cx, link) {
            let answer = router.message(cx, link, message);
            router.settle(cx);
            handled = answer?;
        } else if is_lease {
            // Put aside it might be handled behind a later one, and end what that one promised.
            handled = Handled::Done;
        }
        let was_first_in_the_way = std::mem::take(&mut was_in_the_way);
        match handled {
            Handled::Stalled => {
                has_aside = cx.links.put_aside(link, &bytes[consumed..consumed + size], cx.now);
                if !has_aside {
                    cx.links.tenants.note_held_back(link, cx.now);
                    return Ok(Progress { consumed, is_stalled: true });
                }
            }
            Handled::Done if was_first_in_the_way => {
                if let Some(peer) = cx.links.osd_mut(link) {
                    peer.backlog = Backlog::None;
                }
            }
            Handled::Done => {}
        }
        consumed += size;
        // Not before the first: one that waits is presented again and again.
        if is_client && done.is_multiple_of(read::AHEAD) {
            read::bring_ahead(cx, &bytes[consumed..]);
        }
        done += 1;
    }
}

/// Handles what was put aside of a link, as far as it can be handled now. Answers whether something is left of it.
fn take_up(router: &mut Router, cx: &mut Context<'_, impl Io>, link: LinkId) -> Result<bool, LinkError> {
    let Some(peer) = cx.links.osd_mut(link) else { return Ok(false) };
    let Backlog::Aside(aside) = &mut peer.backlog else { return Ok(false) };
    let mut aside = std::mem::take(aside);
    let mut work = 0;
    while work < queue::WORK_MAX
        && let Some((message, size)) = wire::parse(aside.left())?
    {
        work += queue::work_of(&message);
        let handled = router.message(cx, link, message);
        router.settle(cx);
        if handled? == Handled::Stalled {
            break;
        }
        aside.was_handled(size, cx.now);
        // What it led to goes with the end of a turn.
        cx.turn.next_tick = cx.now;
    }
    let is_left = !aside.left().is_empty();
    if let Some(peer) = cx.links.osd_mut(link) {
        peer.backlog = if is_left { Backlog::Aside(aside) } else { Backlog::None };
    }
    Ok(is_left)
}

/// Whether the first message of a link could not be handled when it was there before.
fn is_in_the_way(cx: &mut Context<'_, impl Io>, link: LinkId) -> bool {
    cx.links.osd_mut(link).is_some_and(|peer| matches!(peer.backlog, Backlog::InTheWay(_)))
}

/// Whether a lease is handled although other messages before it were put aside.
fn lets_leases_by(cx: &mut Context<'_, impl Io>, link: LinkId) -> bool {
    let now = cx.now;
    cx.links.osd_mut(link).is_some_and(|peer| peer.backlog.lets_leases_by(now))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
    use super::*;
    use crate::links::OsdLink;
    use crate::links::access::ClientLink;
    use crate::testing::{Alone, PG, Pair, REPLICA, VOLUME};
    use base::{BLOCK_BYTES, BlockRange, ClientId, ObjectKey};
    use std::time::Duration;
    use wire::{Lease, Status, Welcome};

    const KEY: ObjectKey = ObjectKey { pg: PG, layer: VOLUME.first_layer(), object: 3 };

    #[test]
    fn whoever_is_dialled_is_greeted_and_only_clients_and_who_may_be_one_share_something() {
        let mut alone = Alone::new();
        let (dialled, accepted, client, gone) = (LinkId(20), LinkId(21), LinkId(22), LinkId(23));
        alone.osd.shared.links.insert_osd(dialled, OsdLink::new(OsdId(4), None, alone.now));
        alone.osd.handle_accepted(accepted, None).unwrap();
        alone.osd.shared.links.insert(client, Peer::Client(ClientLink::new(ClientId(9), None)));
        let Alone { osd, io, .. } = &mut alone;
        [dialled, accepted, client, gone].into_iter().for_each(|link| osd.handle_connected(link, io));
        let hello = io.told(dialled, |message| match message {
            Message::Hello(hello) => Some((hello.role, hello.cluster, hello.target)),
            _ => None,
        });
        assert_eq!(hello, [(Role::Osd(OsdId(0)), osd.me.cluster, OsdId(4))]);
        assert!(io.to.is_empty(), "nobody else is told anything");
        let links = [dialled, accepted, client, gone];
        assert_eq!(links.map(|link| osd.is_greeted(link)), [true, false, true, false]);
        let tenants = [None, Some(Tenant::NOBODY), Some(Tenant::NOBODY), None];
        assert_eq!(links.map(|link| osd.tenant(link)), tenants);
    }

    #[test]
    fn a_shutdown_ends_what_is_under_way_in_every_group_and_is_over_when_all_is_on_the_drive() {
        let mut alone = Alone::with_groups(2);
        let object = (0..).find(|object| PgId::of_object(PG.pool, 2, VOLUME, *object) == PG).unwrap();
        let request = alone.request(&BlockRange::one(ObjectKey { object, ..KEY }, 10));
        alone.with(|_, cx| crate::request::write::handle_zero(cx, LinkId(7), &request));
        alone.osd.begin_shutdown(&mut alone.io);
        let told = alone.io.told(LinkId(7), |message| match message {
            Message::Reply(reply) => Some(reply.head.status),
            _ => None,
        });
        assert_eq!(told, [Status::NotActive]);
        let troubles: Vec<_> = alone.osd.view().summaries().filter_map(|summary| summary.trouble).collect();
        assert_eq!(troubles, ["the OSD is shutting down"; 2]);
        assert!(!alone.osd.is_shut_down(), "the drive has not written");
        alone.run();
        assert!(alone.osd.is_shut_down());
        assert!(alone.osd.shared.groups.iter().all(|group| !group.is_active()), "nothing is claimed");
        assert_eq!(alone.osd.view().operations_in_flight(), 0);
    }

    #[test]
    fn what_a_shutdown_takes_is_asked_of_the_drive_at_once_and_of_one_that_failed_nothing() {
        let mut alone = Alone::new();
        alone.write(KEY);
        assert!(alone.io.drive.is_empty(), "all is written");
        alone.osd.begin_shutdown(&mut alone.io);
        assert!(!alone.io.drive.is_empty() && !alone.osd.is_shut_down());
        let mut alone = Alone::new();
        alone.osd.fail_drive(alone.now, "a test", &mut alone.io);
        assert!(!alone.osd.is_shut_down());
        alone.osd.begin_shutdown(&mut alone.io);
        assert!(alone.io.drive.is_empty() && alone.osd.is_shut_down());
    }

    /// Messages of an OSD are put aside.
    fn put_aside(alone: &mut Alone, link: LinkId, message: &[u8], count: usize) {
        let links = &mut alone.osd.shared.links;
        assert!(!links.put_aside(link, message, alone.now), "for a moment it is in the way");
        alone.now = alone.now + Duration::from_secs(1);
        assert!((0..count).all(|_| links.put_aside(link, message, alone.now)));
    }

    #[test]
    fn what_was_put_aside_is_handled_a_part_in_each_turn() {
        let mut alone = Alone::new();
        let link = alone.connect(OsdId(1));
        let lease = Lease { ttl_ms: 900, stamp: 5, ..Lease::default() }.encode();
        put_aside(&mut alone, link, &lease, queue::WORK_MAX + 44);
        for (granted, is_left) in [(queue::WORK_MAX, true), (44, false), (0, false)] {
            let Alone { osd, io, now } = &mut alone;
            osd.end_turn(*now, io);
            let told = io.told(link, |message| match message {
                Message::Lease(lease) => (lease.granted_ttl_ms > 0).then_some(()),
                _ => None,
            });
            assert_eq!(told.len(), granted);
            assert_eq!(osd.shared.links.with_aside.len(), usize::from(is_left));
            assert_eq!(osd.next_timeout() <= *now, granted > 0, "what it led to goes with the next turn");
        }
    }

    #[test]
    fn who_sent_what_must_not_be_said_and_was_put_aside_is_told_so_and_let_go() {
        let mut alone = Alone::new();
        let link = alone.connect(OsdId(1));
        let version = VERSIONS.common(VERSIONS).unwrap();
        put_aside(&mut alone, link, &Welcome { version }.encode(), 1);
        let Alone { osd, io, now } = &mut alone;
        osd.end_turn(*now, io);
        let told = io.told(link, |message| match message {
            Message::Refused(refused) => Some(refused.reason.to_owned()),
            _ => None,
        });
        assert_eq!((told.len(), &io.closed[..]), (1, &[link][..]));
        assert!(osd.shared.links.osds().next().is_none() && osd.shared.links.with_aside.is_empty());
        let noted = format!("a connection is refused: {}", told[0]);
        assert!(osd.view().notes().any(|note| note == noted));
    }

    #[test]
    fn a_group_is_scrubbed_soon_by_who_leads_it_and_by_nobody_else() {
        let mut alone = Alone::new();
        assert!(alone.osd.next_timeout() > alone.now);
        assert!(!alone.osd.begin_scrub(PgId { index: 9, ..PG }, false));
        assert!(alone.osd.next_timeout() > alone.now && alone.osd.view().scrub_is_over());
        assert!(alone.osd.begin_scrub(PG, false));
        assert!(alone.osd.next_timeout() <= alone.now && !alone.osd.view().scrub_is_over());
        alone.run();
        assert_eq!(alone.osd.take_scrub_reports().len(), 1);
        alone.with(|_, cx| epoch::end(cx, 0, "a test"));
        assert!(!alone.osd.begin_scrub(PG, false));
    }

    #[test]
    fn what_a_person_should_know_of_a_drive_is_noted() {
        let mut alone = Alone::new();
        alone.order(KEY, 10, 1, 0);
        let place = alone.osd.shared.disk.location_of(KEY, 10).unwrap();
        alone.io.bad = Some(u64::from(place.0) * BLOCK_BYTES as u64);
        let request = alone.request(&BlockRange::one(KEY, 10));
        alone.with(|router, cx| router.reads.handle_read(cx, LinkId(7), &request));
        alone.drive_answers();
        alone.osd.renew_superblocks(4096);
        let notes: Vec<&str> = alone.osd.view().notes().collect();
        assert!(notes.contains(&"a read of the drive failed: a bad place"), "{notes:?}");
        assert!(notes.iter().any(|note| note.starts_with("the superblock at offset 4096 ")), "{notes:?}");
    }

    #[test]
    fn a_link_that_ended_ends_the_epochs_of_whoever_was_there_at_that_moment() {
        let mut pair = Pair::new();
        let later = pair.alone.now + Duration::from_secs(3);
        pair.alone.osd.handle_closed(later, pair.link, "a test", &mut pair.alone.io);
        assert!(!pair.alone.osd.shared.groups[0].is_active());
        assert_eq!((pair.alone.osd.shared.links.link_of(REPLICA), pair.alone.osd.now), (None, later));
    }
}
