//! What clients may do in a second, by limits of volumes and of keys, whichever OSDs they ask.
//!
//! Each limit has a *home*: one of the OSDs that are up, the same for whoever has the same map. There stands its [`bucket`], which
//! fills at the limit's rate. Each primary has a [`meter`] with a small stash of what it may begin. A request that finds nothing
//! there waits, the first come the first, and the primary asks the home for as much as waits, and for a little more, so that
//! who stays below a limit hardly ever waits for an answer. The home gives what there is, to each by how much it asked for. So
//! what is begun at all primaries together is what the bucket gave: no more, and where more is asked for, no less, wherever
//! that is.
//!
//! A primary that does not reach the home gives itself its part of the rate, that of one OSD of those that are up; the home
//! leaves it that.
//!
//! # What waits
//! Of a read nothing is kept but what it asks for. Nor are the bytes of a write: when it may begin, its client is told to send it
//! again, and what comes then is paid for. So nobody ties up memory by having a limit. What waits of one volume is in nobody
//! else's way, nor are writes in that of reads: each has a line of its own.
//!
//! Changes of clients that are to stand still, so that a snapshot can be made, do not wait: what they began is to end. They count all the
//! same, and what comes later waits for that.
//!
//! A client hears each second that its oldest request waits: who hears nothing at all takes a connection for a dead one.

mod bucket;
mod meter;

use crate::links::{Links, Peer};
use base::figures::RequestKind;
use base::hash::{Map, Set, mix};
use base::map::ClusterMap;
use base::tenant::{Held, may_have};
use base::{Instant, Limited, Limits, LinkId, OsdId, Tenant, VolumeId};
use bucket::{Bucket, Part};
use meter::Meter;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use wire::{Allowance, HeaderBytes, KNOWS_LIMITS, Kind, Request};

/// The most requests of one connection that wait here. What comes behind them stays in the connection.
pub(crate) const WAITING_PER_LINK_MAX: usize = 256;
/// The same of all connections.
const WAITING_MAX: usize = 8192;
/// How often a client is told that something of its waits.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// For so long a home is not asked that did not know a limit.
const ALONE_FOR: Duration = Duration::from_secs(1);
/// For so long what was paid for counts at least, and at most for twice that.
const PAID_FOR: Duration = Duration::from_secs(1);

/// What reads, and what changes something.
pub(crate) const READS: usize = 0;
pub(crate) const CHANGES: usize = 1;

fn way_of(kind: RequestKind) -> usize {
    if kind == RequestKind::Read { READS } else { CHANGES }
}

/// What a request counts for. A zeroing moves no bytes.
fn cost_of(bytes: u32, kind: RequestKind) -> Amount {
    let bytes = if kind == RequestKind::Zero { 0 } else { i64::from(bytes) };
    Amount { operations: 1, bytes }
}

/// What a request is known by when it comes again: of a change what its client calls it, of a read its number.
type Name = (usize, u64);

fn name_of(request: &Request, kind: RequestKind) -> Name {
    let way = way_of(kind);
    (way, if way == READS { request.request } else { request.origin })
}

/// Operations and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    operations: i64,
    bytes: i64,
}

impl Amount {
    fn add(&mut self, other: Amount) {
        self.operations = self.operations.saturating_add(other.operations);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }

    fn take_off(&mut self, other: Amount) {
        self.operations = self.operations.saturating_sub(other.operations);
        self.bytes = self.bytes.saturating_sub(other.bytes);
    }
}

/// Of reads, and of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Ways([Amount; 2]);

impl Ways {
    fn add(&mut self, other: &Ways) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| own.add(other));
    }

    fn take_off(&mut self, other: &Ways) {
        self.0.iter_mut().zip(other.0).for_each(|(own, other)| own.take_off(other));
    }

    /// Whether nothing of it is more than nothing.
    fn is_none(&self) -> bool {
        self.0.iter().all(|amount| amount.operations <= 0 && amount.bytes <= 0)
    }

    fn of(told: &Allowance) -> Ways {
        let amount = |operations: u32, bytes: u64| Amount {
            operations: operations.into(),
            bytes: i64::try_from(bytes).unwrap_or(i64::MAX / 4).min(i64::MAX / 4),
        };
        Ways([amount(told.reads, told.read_bytes), amount(told.changes, told.changed_bytes)])
    }

    fn told(&self, of: Limited, is_all: bool) -> Allowance {
        let operations = |way: usize| u32::try_from(self.0[way].operations.max(0)).unwrap_or(u32::MAX);
        let bytes = |way: usize| self.0[way].bytes.max(0) as u64;
        Allowance {
            of,
            is_all,
            reads: operations(READS),
            changes: operations(CHANGES),
            read_bytes: bytes(READS),
            changed_bytes: bytes(CHANGES),
        }
    }
}

/// A request that waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting {
    pub(crate) link: LinkId,
    pub(crate) request: Request,
    kind: RequestKind,
    tenant: Tenant,
    /// The key of its client, if that has limits.
    key: Option<Limited>,
    /// When its client was told last that it waits; at first, since when it does.
    told_at: Instant,
}

impl Waiting {
    fn way(&self) -> usize {
        way_of(self.kind)
    }

    pub(crate) fn is_read(&self) -> bool {
        self.way() == READS
    }

    fn cost(&self) -> Amount {
        cost_of(self.request.length, self.kind)
    }

    fn volume(&self) -> VolumeId {
        self.request.key.layer.volume()
    }
}

/// What a client was told to send again, and did not send yet. It is forgotten in time: whoever never sends anything again would
/// save up for ever.
#[derive(Clone, Copy, Debug, Default)]
struct Paid {
    since: Instant,
    lately: Amount,
    before: Amount,
}

impl Paid {
    fn forget_old(&mut self, now: Instant) {
        let age = now.since(self.since);
        if age >= PAID_FOR {
            let before = if age < 2 * PAID_FOR { self.lately } else { Amount::default() };
            *self = Paid { since: now, lately: Amount::default(), before };
        }
    }

    fn is_used_up(&self) -> bool {
        self.lately.operations < 1 && self.before.operations < 1
    }
}

/// What becomes of a request by the limits that it counts for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Admitted {
    Begins,
    Waits,
    /// As many wait as may: it stays in its connection.
    Stays,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// By the newest map.
    limits: BTreeMap<Limited, Limits>,
    homes: BTreeMap<Limited, OsdId>,
    /// Some of them are of keys.
    has_keys: bool,
    /// How many OSDs are up, and how many of them reach this one, itself included: as of the newest tick.
    osds: u32,
    linked: u32,
    meters: BTreeMap<Limited, Meter>,
    /// Those that are to be looked at with the end of the turn.
    due: Vec<Limited>,
    /// Of those limits of which this is the home, or whose home it does not reach.
    buckets: BTreeMap<Limited, Bucket>,
    /// When it is looked at each of them next, of which somebody wants something.
    looks: BTreeSet<(Instant, Limited)>,
    by_link: Map<LinkId, usize>,
    by_tenant: Held,
    /// What clients were told to send again, and what that may cost.
    paid: Map<(LinkId, Name), Paid>,
    /// What waits no more and is to be handled.
    ready: VecDeque<Waiting>,
}

impl Throttle {
    /// Whether there are no limits, nor were a moment ago.
    fn is_idle(&self) -> bool {
        self.limits.is_empty() && self.ready.is_empty()
    }

    /// Whether nothing waits, and is not waited for either.
    pub(crate) fn is_at_rest(&self) -> bool {
        let is_nothing_due = self.due.is_empty() && self.looks.is_empty();
        is_nothing_due && self.ready.is_empty() && self.paid.is_empty() && self.by_link.is_empty()
    }

    /// When there is something to do next.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        let next = self.looks.first().map(|(at, _)| *at);
        if self.due.is_empty() { next } else { Some(Instant::default()) }
    }

    /// Goes by a newer map.
    pub(crate) fn heed(&mut self, map: &ClusterMap, now: Instant) {
        let volumes = map.volumes.iter().filter(|(_, info)| !info.removed && !info.limits.is_none());
        let volumes = volumes.map(|(id, info)| (Limited::Volume(*id), info.limits));
        let keys = map.principals.values().filter(|principal| !principal.limits.is_none());
        let keys = keys.map(|principal| (principal.public_key.limited(), principal.limits));
        self.limits = volumes.chain(keys).collect();
        self.has_keys = self.limits.keys().any(|limited| matches!(limited, Limited::Key(_)));
        let up: Vec<OsdId> =
            map.osds.iter().filter(|(_, info)| info.address.is_some()).map(|(osd, _)| *osd).collect();
        self.osds = (up.len() as u32).max(1);
        let homes: BTreeMap<Limited, OsdId> =
            self.limits.keys().filter_map(|of| Some((*of, home_of(*of, &up)?))).collect();
        let before = std::mem::replace(&mut self.homes, homes);
        for (of, bucket) in &mut self.buckets {
            if before.get(of) != self.homes.get(of) {
                let next_at = bucket.next_at;
                bucket.begin_anew(now);
                note_look(&mut self.looks, *of, next_at, None);
            }
        }
        if self.limits.is_empty() {
            self.paid.clear();
        }
        let gone: Vec<Limited> =
            self.meters.keys().filter(|of| !self.limits.contains_key(of)).copied().collect();
        for of in gone {
            // Whatever waited for it goes on.
            let Some(mut meter) = self.meters.remove(&of) else { continue };
            for way in [READS, CHANGES] {
                while let Some(waiting) = meter.next(way) {
                    self.ready.push_back(waiting);
                }
            }
        }
        for volume in map.still.keys() {
            self.hurry(*volume, now);
        }
        self.due.retain(|of| self.limits.contains_key(of));
        self.buckets.retain(|of, _| self.limits.contains_key(of));
        self.looks.retain(|(_, of)| self.limits.contains_key(of));
        for of in self.meters.keys().copied().collect::<Vec<_>>() {
            let (limits, osds) = (self.limits[&of], self.osds);
            self.change(of, now, |meter| meter.heed(&limits, osds));
        }
        for (of, bucket) in &mut self.buckets {
            let before = bucket.next_at;
            bucket.heed(self.limits[of], now);
            note_look(&mut self.looks, *of, before, bucket.next_at);
        }
    }

    /// The clients of a volume are to stand still, and what they began is to end: it begins now, and what comes later waits for it.
    fn hurry(&mut self, volume: VolumeId, now: Instant) {
        let mut hurried = Vec::new();
        for of in self.meters.keys().copied().collect::<Vec<_>>() {
            self.change(of, now, |meter| {
                meter.drop_from_lines(|waiting| {
                    let is_its = waiting.way() == CHANGES && waiting.volume() == volume;
                    if is_its {
                        hurried.push(*waiting);
                    }
                    is_its
                });
            });
        }
        hurried.into_iter().for_each(|waiting| self.lets_begin(waiting, now));
    }

    /// What waited begins, and counts.
    fn lets_begin(&mut self, waiting: Waiting, now: Instant) {
        let all = [Some(Limited::Volume(waiting.volume())), waiting.key];
        self.begins(all, waiting.way(), waiting.cost(), now);
        self.pay(waiting.link, name_of(&waiting.request, waiting.kind), waiting.cost(), now);
        self.ready.push_back(waiting);
    }

    /// Changes the meter of a limit, which may be a new one. None: there is no such limit.
    fn change<T>(&mut self, of: Limited, now: Instant, change: impl FnOnce(&mut Meter) -> T) -> Option<T> {
        let limits = self.limits.get(&of)?;
        let was_due = self.meters.get(&of).is_some_and(|meter| meter.is_due);
        let meter = self.meters.entry(of).or_insert_with(|| Meter::new(limits, self.osds, now));
        let answer = change(meter);
        if meter.is_due && !was_due {
            self.due.push(of);
        }
        Some(answer)
    }

    /// An OSD wants something of a limit, or this one itself.
    fn want(
        &mut self,
        of: Limited,
        osd: OsdId,
        link: Option<LinkId>,
        ways: &Ways,
        is_all: bool,
        now: Instant,
    ) {
        let Some(limits) = self.limits.get(&of) else { return };
        let bucket = self.buckets.entry(of).or_insert_with(|| Bucket::new(*limits, now));
        let before = bucket.next_at;
        bucket.wants(osd, link, ways, is_all, now);
        note_look(&mut self.looks, of, before, bucket.next_at);
    }

    /// One of these that lets nothing of a way begin that comes now.
    fn lacking(
        &mut self,
        of: [Option<Limited>; 2],
        way: usize,
        cost: Amount,
        now: Instant,
    ) -> Option<Limited> {
        let mut lets_it = |of| self.change(of, now, |meter| meter.may_begin_new(way, cost));
        of.into_iter().flatten().find(|of| lets_it(*of) == Some(false))
    }

    fn begins(&mut self, of: [Option<Limited>; 2], way: usize, cost: Amount, now: Instant) {
        for of in of.into_iter().flatten() {
            self.change(of, now, |meter| meter.begins(way, cost));
        }
    }

    fn pay(&mut self, link: LinkId, name: Name, cost: Amount, now: Instant) {
        let paid = self.paid.entry((link, name)).or_default();
        paid.forget_old(now);
        paid.lately.add(cost);
    }

    /// Whether something that comes was paid for. It is no more then.
    fn was_paid(&mut self, link: LinkId, name: Name, cost: Amount, now: Instant) -> bool {
        let Some(paid) = self.paid.get_mut(&(link, name)) else { return false };
        paid.forget_old(now);
        let parts = [&mut paid.before, &mut paid.lately];
        let enough = parts.into_iter().find(|part| part.operations >= 1 && part.bytes >= cost.bytes);
        let was_paid = enough.map(|part| part.take_off(cost)).is_some();
        if paid.is_used_up() {
            self.paid.remove(&(link, name));
        }
        was_paid
    }

    fn may_wait(&self, link: LinkId, tenant: Tenant) -> bool {
        let free = WAITING_MAX.saturating_sub(self.by_tenant.all());
        self.by_link.get(&link).copied().unwrap_or(0) < WAITING_PER_LINK_MAX
            && may_have(tenant, self.by_tenant.of(tenant), 1, free)
    }

    fn count(&mut self, waiting: &Waiting) {
        *self.by_link.entry(waiting.link).or_default() += 1;
        self.by_tenant.add(waiting.tenant, 1);
    }

    fn uncount(&mut self, waiting: &Waiting) {
        if let Some(count) = self.by_link.get_mut(&waiting.link) {
            *count -= 1;
            if *count == 0 {
                self.by_link.remove(&waiting.link);
            }
        }
        self.by_tenant.take_off(waiting.tenant, 1);
    }

    /// The first of those that wait for a limit that may begin by all of its limits.
    fn next_to_begin(&mut self, of: Limited, way: usize, now: Instant) -> Option<Waiting> {
        loop {
            let meter = self.meters.get_mut(&of)?;
            if !meter.may_begin(way) {
                return None;
            }
            let waiting = meter.next(way)?;
            let all = [Some(Limited::Volume(waiting.volume())), waiting.key];
            let others = all.map(|other| other.filter(|other| *other != of));
            match self.lacking(others, way, waiting.cost(), now) {
                Some(other) => {
                    self.change(of, now, Meter::wants_less);
                    self.change(other, now, |meter| meter.wait(waiting));
                }
                None => return Some(waiting),
            }
        }
    }

    /// What waited and is to be handled now, each that is not put back.
    pub(crate) fn take_ready(&mut self) -> VecDeque<Waiting> {
        let ready = std::mem::take(&mut self.ready);
        ready.iter().for_each(|waiting| self.uncount(waiting));
        ready
    }

    /// It cannot be handled yet.
    pub(crate) fn put_back(&mut self, waiting: Waiting) {
        self.count(&waiting);
        self.ready.push_back(waiting);
    }

    /// Whether a request of a client begins that comes now; then it counts. `is_still`: the clients of its volume are to stand still.
    pub(crate) fn admit(
        &mut self,
        links: &Links,
        link: LinkId,
        (request, kind): (&Request, RequestKind),
        is_still: bool,
        now: Instant,
    ) -> Admitted {
        if self.limits.is_empty() {
            return Admitted::Begins;
        }
        let volume = request.key.layer.volume();
        let (way, cost) = (way_of(kind), cost_of(request.length, kind));
        let key = self.has_keys.then(|| links.get(link)?.credential()).flatten();
        let key = key.map(|credential| credential.principal.public_key.limited());
        let key = key.filter(|key| self.limits.contains_key(key));
        let all = [Some(Limited::Volume(volume)), key];
        if self.was_paid(link, name_of(request, kind), cost, now) {
            return Admitted::Begins;
        }
        let lacking = self.lacking(all, way, cost, now);
        let Some(of) = lacking.filter(|_| way == READS || !is_still) else {
            self.begins(all, way, cost, now);
            return Admitted::Begins;
        };
        let tenant = links.tenants.of(link);
        if !self.may_wait(link, tenant) {
            return Admitted::Stays;
        }
        let waiting = Waiting { link, request: *request, kind, tenant, key, told_at: now };
        self.count(&waiting);
        self.change(of, now, |meter| meter.wait(waiting));
        Admitted::Waits
    }

    /// A request that counted, and could not begin, comes once more.
    pub(crate) fn comes_again(&mut self, link: LinkId, request: &Request, kind: RequestKind, now: Instant) {
        if !self.limits.is_empty() {
            self.pay(link, name_of(request, kind), cost_of(request.length, kind), now);
        }
    }

    /// Another OSD asks for a part of what a limit gives. It is told if the limit is not known here: then it is alone for a while.
    pub(crate) fn was_asked(
        &mut self,
        osd: OsdId,
        link: LinkId,
        asked: &Allowance,
        now: Instant,
    ) -> Option<Allowance> {
        if !self.limits.contains_key(&asked.of) {
            return Some(Ways::default().told(asked.of, true));
        }
        self.want(asked.of, osd, Some(link), &Ways::of(asked), asked.is_all, now);
        None
    }

    /// The home of a limit gives something.
    pub(crate) fn was_given(&mut self, link: LinkId, given: &Allowance, now: Instant) {
        if self.meters.contains_key(&given.of) {
            self.change(given.of, now, |meter| {
                meter.was_given(Some(link), &Ways::of(given), now);
                if given.is_all {
                    meter.is_alone_until(now + ALONE_FOR);
                }
            });
        }
    }

    /// Asks for what is lacking, gives what there is, and lets begin what may. `is_heard`: who is cut off from the registry may be the
    /// home by an old map only.
    pub(crate) fn advance(
        &mut self,
        me: OsdId,
        links: &Links,
        is_heard: bool,
        now: Instant,
        mut send: impl FnMut(LinkId, &HeaderBytes),
    ) {
        if self.limits.is_empty() {
            return;
        }
        self.ask(me, links, now, &mut send);
        self.give(me, links, is_heard, now, &mut send);
        self.begin(now);
    }

    fn ask(&mut self, me: OsdId, links: &Links, now: Instant, send: &mut impl FnMut(LinkId, &HeaderBytes)) {
        for of in self.due.clone() {
            let asks = self.meters.get_mut(&of).map(|meter| {
                let home = self.homes.get(&of).filter(|_| meter.asks_home(now));
                let on = asked_on(me, links, home);
                (on, meter.asks(on, now))
            });
            let Some((on, Some((more, is_all)))) = asks else { continue };
            match on {
                Some(link) => send(link, &more.told(of, is_all).encode(Kind::AskAllowance)),
                None => self.want(of, me, None, &more, is_all, now),
            }
        }
    }

    fn give(
        &mut self,
        me: OsdId,
        links: &Links,
        is_heard: bool,
        now: Instant,
        send: &mut impl FnMut(LinkId, &HeaderBytes),
    ) {
        while let Some((at, of)) = self.looks.first().copied()
            && at <= now
        {
            self.looks.pop_first();
            let Some(bucket) = self.buckets.get_mut(&of) else { continue };
            bucket.keep(|osd, link| if osd == me { link.is_none() } else { link == reached(links, osd) });
            let is_home = self.homes.get(&of) == Some(&me) && is_heard;
            let part = Part { of: if is_home { self.linked.max(1) } else { 1 }, all: self.osds };
            let given = bucket.give(now, part, is_home);
            note_look(&mut self.looks, of, None, bucket.next_at);
            for (_, link, ways) in given {
                match link {
                    Some(link) => send(link, &ways.told(of, false).encode(Kind::Allowance)),
                    None => drop(self.change(of, now, |meter| meter.was_given(None, &ways, now))),
                }
            }
        }
    }

    fn begin(&mut self, now: Instant) {
        let due = std::mem::take(&mut self.due);
        for of in &due {
            for way in [READS, CHANGES] {
                while let Some(waiting) = self.next_to_begin(*of, way, now) {
                    self.lets_begin(waiting, now);
                }
            }
        }
        // What began may have to be asked for again: with the next turn, if that is so.
        for of in due {
            let Some(meter) = self.meters.get_mut(&of) else { continue };
            meter.is_due = meter.is_short();
            if meter.is_due && !self.due.contains(&of) {
                self.due.push(of);
            }
        }
    }

    /// Looks at the slow things. Answers whose clients are to be told that they wait, each with the number of a request.
    pub(crate) fn tick(
        &mut self,
        me: OsdId,
        map: &ClusterMap,
        links: &Links,
        now: Instant,
    ) -> Vec<(LinkId, u64)> {
        let mut late = Vec::new();
        if self.is_idle() {
            return late;
        }
        let up = map.osds.iter().filter(|(_, info)| info.address.is_some());
        let linked = up.filter(|(osd, _)| **osd == me || reached(links, **osd).is_some()).count();
        self.linked = linked as u32;
        self.sweep(links, now);
        let mut told = Set::default();
        for of in self.meters.keys().copied().collect::<Vec<_>>() {
            let on = asked_on(me, links, self.homes.get(&of));
            self.change(of, now, |meter| meter.look(if meter.asks_home(now) { on } else { None }, now));
            let Some(meter) = self.meters.get_mut(&of) else { continue };
            for waiting in meter.waiting_mut() {
                if told.insert(waiting.link) && now.since(waiting.told_at) >= TOLD_EVERY {
                    waiting.told_at = now;
                    late.push((waiting.link, waiting.request.request));
                }
            }
        }
        late
    }

    /// What was told on links that are gone is forgotten, and what was paid for and did not come.
    fn sweep(&mut self, links: &Links, now: Instant) {
        if self.by_link.keys().any(|link| !is_client(links, *link)) {
            let mut gone = Vec::new();
            for of in self.meters.keys().copied().collect::<Vec<_>>() {
                self.change(of, now, |meter| {
                    meter.drop_from_lines(|waiting| {
                        let is_gone = !is_client(links, waiting.link);
                        if is_gone {
                            gone.push(*waiting);
                        }
                        is_gone
                    });
                });
            }
            gone.iter().for_each(|waiting| self.uncount(waiting));
        }
        self.paid.retain(|_, paid| {
            paid.forget_old(now);
            !paid.is_used_up()
        });
    }
}

/// What tests look at.
#[cfg(test)]
impl Throttle {
    /// How many requests wait.
    pub(crate) fn waiting(&self) -> usize {
        self.by_tenant.all()
    }

    /// Whether nothing is counted or kept of any client.
    pub(crate) fn keeps_nothing(&self) -> bool {
        self.by_tenant.all() == 0 && self.by_link.is_empty() && self.paid.is_empty()
    }

    /// An OSD is the home of a limit until the next map.
    pub(crate) fn has_home(&mut self, of: Limited, home: OsdId) {
        self.homes.insert(of, home);
    }

    pub(crate) fn has_bucket(&self, of: Limited) -> bool {
        self.buckets.contains_key(&of)
    }
}

/// Where the bucket of a limit stands, of the OSDs that are up.
fn home_of(of: Limited, up: &[OsdId]) -> Option<OsdId> {
    let number = match of {
        Limited::Volume(VolumeId(id)) => mix(id),
        Limited::Key(key) => mix(!key),
    };
    up.iter().copied().max_by_key(|osd| mix(number ^ u64::from(osd.0)))
}

fn is_client(links: &Links, link: LinkId) -> bool {
    matches!(links.get(link), Some(Peer::Client(_)))
}

/// The link to an OSD that knows of limits, if it stands.
fn reached(links: &Links, osd: OsdId) -> Option<LinkId> {
    let knows = links.to(osd).is_some_and(|peer| peer.version >= Some(KNOWS_LIMITS));
    links.ready(osd).filter(|_| knows)
}

/// When it is looked at a bucket next was another moment before.
fn note_look(
    looks: &mut BTreeSet<(Instant, Limited)>,
    of: Limited,
    before: Option<Instant>,
    now: Option<Instant>,
) {
    if let Some(before) = before {
        looks.remove(&(before, of));
    }
    looks.extend(now.map(|at| (at, of)));
}

/// On which link a home is asked; none if it is here, or is not reached.
fn asked_on(me: OsdId, links: &Links, home: Option<&OsdId>) -> Option<LinkId> {
    home.filter(|home| **home != me).and_then(|home| reached(links, *home))
}
