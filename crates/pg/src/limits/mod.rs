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
//! A client hears each second that its oldest request waits: who hears nothing at all takes a connection for a dead one.

mod bucket;
mod meter;

use crate::broken::Sabotage;
use crate::context::{Context, Handled};
use crate::io::Io;
use crate::links::{Links, Peer};
use base::figures::RequestKind;
use base::hash::{Map, Set, mix};
use base::map::ClusterMap;
use base::tenant::{Held, may_have};
use base::{Instant, Limited, Limits, LinkId, OsdId, Tenant, VolumeId};
use bucket::{Bucket, Part};
use meter::Meter;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use wire::{Allowance, KNOWS_LIMITS, Kind, Outcome, RefusalDetails, Request, Status};

/// The most requests of one connection that wait here. What comes behind them stays in the connection.
const WAITING_PER_LINK_MAX: usize = 256;
/// The same of all connections.
const WAITING_MAX: usize = 8192;
/// How often a client is told that something of its waits.
const TOLD_EVERY: Duration = Duration::from_secs(1);
/// For so long what was paid for counts.
const PAID_FOR: Duration = Duration::from_secs(1);

/// What reads, and what changes something.
pub(crate) const READS: usize = 0;
pub(crate) const CHANGES: usize = 1;

fn way_of(kind: RequestKind) -> usize {
    if kind == RequestKind::Read { READS } else { CHANGES }
}

/// What a request counts for. A zeroing moves no bytes.
fn cost_of(request: &Request, kind: RequestKind) -> Amount {
    let bytes = if kind == RequestKind::Zero { 0 } else { i64::from(request.length) };
    Amount { operations: 1, bytes }
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
        cost_of(&self.request, self.kind)
    }

    fn volume(&self) -> VolumeId {
        self.request.key.layer.volume()
    }
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
    /// Of those limits of which this is the home, or whose home it does not reach.
    buckets: BTreeMap<Limited, Bucket>,
    by_link: Map<LinkId, usize>,
    by_tenant: Held,
    /// What clients were told to send again, and what that may cost.
    paid: Map<(LinkId, VolumeId, usize), (Amount, Instant)>,
    /// What waits no more and is to be handled.
    ready: VecDeque<Waiting>,
}

impl Throttle {
    /// Whether there are no limits, nor were a moment ago.
    fn is_idle(&self) -> bool {
        self.limits.is_empty() && self.ready.is_empty() && self.meters.is_empty()
    }

    /// Whether nothing waits, and is not waited for either.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.ready.is_empty()
            && self.paid.is_empty()
            && self.meters.values().all(|meter| !meter.is_due && meter.count() == 0)
            && self.buckets.values().all(|bucket| bucket.next_at.is_none())
    }

    /// When there is something to do next.
    pub(crate) fn next_at(&self) -> Option<Instant> {
        if self.meters.values().any(|meter| meter.is_due) {
            return Some(Instant::default());
        }
        self.buckets.values().filter_map(|bucket| bucket.next_at).min()
    }

    /// Goes by a newer map.
    pub(crate) fn heed(&mut self, map: &ClusterMap, now: Instant) {
        let volumes = map.volumes.iter().filter(|(_, info)| !info.removed && !info.limits.is_none());
        let volumes = volumes.map(|(id, info)| (Limited::Volume(*id), info.limits));
        let keys = map.principals.values().filter(|principal| !principal.limits.is_none());
        let keys = keys.map(|principal| (Limited::of_key(&principal.public_key), principal.limits));
        self.limits = volumes.chain(keys).collect();
        self.has_keys = self.limits.keys().any(|limited| matches!(limited, Limited::Key(_)));
        let up: Vec<OsdId> =
            map.osds.iter().filter(|(_, info)| info.address.is_some()).map(|(osd, _)| *osd).collect();
        self.osds = (up.len() as u32).max(1);
        self.homes = self.limits.keys().filter_map(|of| Some((*of, home_of(*of, &up)?))).collect();
        let gone: Vec<Limited> =
            self.meters.keys().filter(|of| !self.limits.contains_key(of)).copied().collect();
        for of in gone {
            // Whatever waited for it goes on.
            let Some(mut meter) = self.meters.remove(&of) else { continue };
            for way in [READS, CHANGES] {
                while let Some(waiting) = meter.next(way) {
                    self.uncount(&waiting);
                    self.ready.push_back(waiting);
                }
            }
        }
        self.buckets.retain(|of, _| self.limits.contains_key(of));
        for (of, limits) in &self.limits {
            if let Some(meter) = self.meters.get_mut(of) {
                meter.heed(limits, self.osds);
            }
            if let Some(bucket) = self.buckets.get_mut(of) {
                bucket.heed(*limits, now);
            }
        }
    }

    fn meter(&mut self, of: Limited, now: Instant) -> Option<&mut Meter> {
        let limits = self.limits.get(&of)?;
        Some(self.meters.entry(of).or_insert_with(|| Meter::new(limits, self.osds, now)))
    }

    /// One of these that lets nothing of a way begin that comes now.
    fn lacking(&mut self, of: [Option<Limited>; 2], way: usize, now: Instant) -> Option<Limited> {
        of.into_iter()
            .flatten()
            .find(|of| self.meter(*of, now).is_some_and(|meter| !meter.may_begin_new(way)))
    }

    fn begins(&mut self, of: [Option<Limited>; 2], way: usize, cost: Amount) {
        for of in of.into_iter().flatten() {
            if let Some(meter) = self.meters.get_mut(&of) {
                meter.begins(way, cost);
            }
        }
    }

    fn pay(&mut self, link: LinkId, volume: VolumeId, way: usize, cost: Amount, now: Instant) {
        let (paid, at) = self.paid.entry((link, volume, way)).or_default();
        paid.add(cost);
        *at = now;
    }

    /// Whether something that comes was paid for. It is no more then.
    fn was_paid(&mut self, link: LinkId, volume: VolumeId, way: usize, cost: Amount, now: Instant) -> bool {
        let Some((paid, at)) = self.paid.get_mut(&(link, volume, way)) else { return false };
        if paid.operations < 1 || paid.bytes < cost.bytes || now.since(*at) >= PAID_FOR {
            return false;
        }
        paid.take_off(cost);
        if paid.operations == 0 {
            self.paid.remove(&(link, volume, way));
        }
        true
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
            if let Some(other) = self.lacking(others, way, now)
                && let Some(meter) = self.meter(other, now)
            {
                meter.wait(waiting);
                continue;
            }
            self.begins(all, way, waiting.cost());
            return Some(waiting);
        }
    }

    /// The next request that waited and is to be handled now.
    pub(crate) fn next_ready(&mut self) -> Option<Waiting> {
        self.ready.pop_front()
    }

    /// It could not be handled yet.
    pub(crate) fn put_back(&mut self, waiting: Waiting) {
        self.ready.push_front(waiting);
    }

    /// What was told on links that are gone is forgotten, and what was paid for and did not come.
    fn sweep(&mut self, links: &Links, now: Instant) {
        let mut gone = Vec::new();
        for meter in self.meters.values_mut() {
            meter.drop_from_lines(|waiting| {
                let is_gone = !is_client(links, waiting.link);
                if is_gone {
                    gone.push(*waiting);
                }
                is_gone
            });
        }
        gone.iter().for_each(|waiting| self.uncount(waiting));
        self.paid.retain(|_, (_, at)| now.since(*at) < PAID_FOR);
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

/// On which link a home is asked; none if it is here, or is not reached.
fn asked_on(me: OsdId, links: &Links, home: Option<&OsdId>) -> Option<LinkId> {
    home.filter(|home| **home != me).and_then(|home| reached(links, *home))
}

/// Has a request wait that comes now, if a limit does not let it begin. None: it begins, and counts.
pub(crate) fn hold_up(
    cx: &mut Context<'_, impl Io>,
    link: LinkId,
    request: &Request,
    kind: RequestKind,
) -> Option<Handled> {
    if cx.limits.limits.is_empty() || cx.breaks(Sabotage::ForgetLimits) {
        return None;
    }
    let (volume, now) = (request.key.layer.volume(), cx.now);
    let (way, cost) = (way_of(kind), cost_of(request, kind));
    let key = cx.limits.has_keys.then(|| cx.links.get(link)?.credential()).flatten();
    let key = key.map(|credential| Limited::of_key(&credential.principal.public_key));
    let key = key.filter(|key| cx.limits.limits.contains_key(key));
    let all = [Some(Limited::Volume(volume)), key];
    if cx.limits.was_paid(link, volume, way, cost, now) {
        return None;
    }
    let Some(of) = cx.limits.lacking(all, way, now) else {
        cx.limits.begins(all, way, cost);
        return None;
    };
    let tenant = cx.links.tenants.of(link);
    if !cx.limits.may_wait(link, tenant) {
        return Some(Handled::Stalled);
    }
    let waiting = Waiting { link, request: *request, kind, tenant, key, told_at: now };
    cx.limits.count(&waiting);
    if let Some(meter) = cx.limits.meter(of, now) {
        meter.wait(waiting);
    }
    if let Some(state) = cx.volumes.get_mut(volume) {
        state.traffic.throttled += 1;
    }
    if let Some(Peer::Client(client)) = cx.links.get_mut(link) {
        client.traffic.throttled += 1;
    }
    Some(Handled::Done)
}

/// What counted and could not begin comes once more.
pub(crate) fn comes_again(
    cx: &mut Context<'_, impl Io>,
    link: LinkId,
    volume: VolumeId,
    kind: RequestKind,
    bytes: u32,
) {
    if !cx.limits.limits.is_empty() {
        let bytes = if kind == RequestKind::Zero { 0 } else { bytes.into() };
        cx.limits.pay(link, volume, way_of(kind), Amount { operations: 1, bytes }, cx.now);
    }
}

/// Another OSD asks for a part of what a limit gives.
pub(crate) fn handle_ask(cx: &mut Context<'_, impl Io>, osd: OsdId, link: LinkId, asked: &Allowance) {
    // One that does not know the limit yet gives nothing, and is asked again.
    let Some(limits) = cx.limits.limits.get(&asked.of).copied() else { return };
    let bucket = cx.limits.buckets.entry(asked.of).or_insert_with(|| Bucket::new(limits, cx.now));
    bucket.wants(osd, Some(link), &Ways::of(asked), asked.is_all, cx.now);
}

/// The home of a limit gives something.
pub(crate) fn handle_given(cx: &mut Context<'_, impl Io>, link: LinkId, given: &Allowance) {
    if let Some(meter) = cx.limits.meters.get_mut(&given.of) {
        meter.was_given(Some(link), &Ways::of(given), cx.now);
    }
}

/// Asks for what is lacking, gives what there is, and lets begin what may.
pub(crate) fn advance(cx: &mut Context<'_, impl Io>) {
    if cx.limits.is_idle() {
        return;
    }
    ask(cx);
    give(cx);
    begin(cx);
}

fn ask(cx: &mut Context<'_, impl Io>) {
    let Throttle { limits, homes, meters, buckets, .. } = cx.limits;
    for (of, meter) in meters.iter_mut().filter(|(_, meter)| meter.is_due) {
        let on = asked_on(cx.me.id, cx.links, homes.get(of));
        let Some((more, is_all)) = meter.asks(on, cx.now) else { continue };
        match (on, limits.get(of)) {
            (Some(link), _) => cx.io.send(link, &more.told(*of, is_all).encode(Kind::AskAllowance)),
            (None, Some(limits)) => {
                let bucket = buckets.entry(*of).or_insert_with(|| Bucket::new(*limits, cx.now));
                bucket.wants(cx.me.id, None, &more, is_all, cx.now);
            }
            (None, None) => {}
        }
    }
}

fn give(cx: &mut Context<'_, impl Io>) {
    let Throttle { homes, meters, buckets, osds, linked, .. } = cx.limits;
    for (of, bucket) in buckets.iter_mut() {
        if bucket.next_at.is_none_or(|at| at > cx.now) {
            continue;
        }
        let (me, links) = (cx.me.id, &*cx.links);
        bucket.keep(|osd, link| if osd == me { link.is_none() } else { link == reached(links, osd) });
        let is_home = homes.get(of) == Some(&me);
        let part = Part { of: if is_home { (*linked).max(1) } else { 1 }, all: *osds };
        for (_, link, ways) in bucket.give(cx.now, part) {
            match link {
                Some(link) => cx.io.send(link, &ways.told(*of, false).encode(Kind::Allowance)),
                None => {
                    if let Some(meter) = meters.get_mut(of) {
                        meter.was_given(None, &ways, cx.now);
                    }
                }
            }
        }
    }
}

fn begin(cx: &mut Context<'_, impl Io>) {
    let due: Vec<Limited> =
        cx.limits.meters.iter().filter(|(_, meter)| meter.is_due).map(|(of, _)| *of).collect();
    for of in due {
        for way in [READS, CHANGES] {
            while let Some(waiting) = cx.limits.next_to_begin(of, way, cx.now) {
                cx.limits.uncount(&waiting);
                cx.limits.pay(waiting.link, waiting.volume(), way, waiting.cost(), cx.now);
                cx.limits.ready.push_back(waiting);
            }
        }
    }
    // What began may have to be asked for again: with the next turn, if that is so.
    let Throttle { meters, .. } = cx.limits;
    for meter in meters.values_mut() {
        meter.is_due = meter.is_due && meter.is_short();
    }
}

/// Looks at the slow things.
pub(crate) fn tick(cx: &mut Context<'_, impl Io>) {
    if cx.limits.is_idle() {
        return;
    }
    let up = cx.volumes.map.osds.iter().filter(|(_, info)| info.address.is_some());
    let linked = up.filter(|(osd, _)| **osd == cx.me.id || reached(cx.links, **osd).is_some()).count();
    cx.limits.linked = linked as u32;
    cx.limits.sweep(cx.links, cx.now);
    let Throttle { homes, meters, .. } = cx.limits;
    let mut told = Set::default();
    for (of, meter) in meters.iter_mut() {
        meter.look(asked_on(cx.me.id, cx.links, homes.get(of)), cx.now);
        for waiting in meter.waiting_mut() {
            let is_due = told.insert(waiting.link) && cx.now.since(waiting.told_at) >= TOLD_EVERY;
            if is_due && knows_limits(cx.links, waiting.link) {
                waiting.told_at = cx.now;
                let request = waiting.request.request;
                let outcome = Outcome::refused(request, Status::Throttled, RefusalDetails::default());
                cx.io.send(waiting.link, &outcome);
            }
        }
    }
}

fn knows_limits(links: &Links, link: LinkId) -> bool {
    matches!(links.get(link), Some(Peer::Client(client)) if client.knows_limits)
}

/// A change may begin, of which nothing was kept: its client is to send it again.
pub(crate) fn ask_for_again(cx: &mut Context<'_, impl Io>, waiting: &Waiting) {
    let knows_limits = knows_limits(cx.links, waiting.link);
    let status = if knows_limits { Status::SendAgain } else { Status::NotActive };
    let details = RefusalDetails { was_not_begun: true, osd: cx.me.id, ..RefusalDetails::default() };
    cx.io.send(waiting.link, &Outcome::refused(waiting.request.request, status, details));
}

#[cfg(test)]
mod tests;
