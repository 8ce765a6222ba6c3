//! From started processes to a cluster that serves: every OSD up, every placement group active.

use crate::host::configuration::min_size_default;
use crate::host::inquiry::Inquiry;
use crate::host::supervisor::Running;
use anyhow::Context;
use base::map::{ClusterMap, OsdInfo};
use base::{NodeId, OsdId};
use cluster::Cluster;
use health::problem::Health;
use health::status::Overview;
use health::verdict::judge;
use health::view::{self, OsdView, PgHealth, PgView};
use serde::de::DeserializeOwned;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::watch;

/// The pool that the first start makes.
pub const FIRST_POOL: &str = "default";
/// Its placement groups.
const FIRST_POOL_PGS: u32 = 64;
/// The first thing that is waited for.
pub const OSDS_UP: &str = "OSDs up";
/// The second.
pub const GROUPS_ACTIVE: &str = "placement groups active";
/// How often the manager is asked while waiting for placement groups: as often as it makes its answer anew.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How often it is looked whether OSDs are refused.
const LOOK_FOR_REFUSALS_EVERY: Duration = Duration::from_millis(500);

/// How far a start is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// What is waited for.
    pub label: &'static str,
    /// How many are there.
    pub done: u64,
    /// How many there will be.
    pub total: u64,
}

/// What a start waits for.
pub struct Start {
    /// The cluster.
    pub cluster: Cluster,
    /// How it is asked.
    pub inquiry: Inquiry,
    /// How often each OSD had been started before. Only a later incarnation is one of this start: the
    /// leases of a run that was killed are still alive for a while.
    pub incarnations: BTreeMap<OsdId, u64>,
    /// OSDs that were started.
    pub osds_expected: usize,
    /// The nodes that were started. Others have hosts of their own, and started when they did.
    pub nodes: BTreeSet<NodeId>,
    /// The processes of this start.
    pub running: watch::Receiver<Vec<Running>>,
    /// Copies in the pool to make, at the first start.
    pub first_pool_replicas: Option<u32>,
    /// Where to tell how far it is.
    pub steps: watch::Sender<Step>,
}

impl Start {
    /// Waits until every OSD is up, makes the first pool if there is none, and waits until every
    /// placement group is active. Never gives up; whoever calls it knows when to.
    pub async fn wait(&self) -> anyhow::Result<()> {
        let mut maps = self.cluster.watch_map();
        loop {
            let up = self.osds_up(&maps.borrow_and_update());
            self.tell(OSDS_UP, up, self.osds_expected);
            if up >= self.osds_expected {
                break;
            }
            maps.changed().await.context("the cluster map is no longer kept current")?;
        }
        if let Some(replicas) = self.first_pool_replicas {
            self.make_first_pool(replicas).await?;
        }
        loop {
            let told: Option<Overview> = self.ask("/api/v1/overview").await?;
            let map = maps.borrow_and_update().clone();
            let active = told.and_then(|told| told.pgs.by_state.get(&PgHealth::Active).copied()).unwrap_or(0);
            let total = map.pgs.len();
            let pool_seen = self.first_pool_replicas.is_none() || map.pool_named(FIRST_POOL).is_some();
            if pool_seen {
                self.tell(GROUPS_ACTIVE, active, total);
            }
            if pool_seen && active == total {
                return Ok(());
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Waits until OSDs of this start are refused by what is on their drives, and tells why. Never gives up.
    pub async fn refusals(&self) -> anyhow::Result<Vec<String>> {
        loop {
            let told: Vec<OsdView> = self.ask("/api/v1/osds").await?.unwrap_or_default();
            let runs = |pid| self.running.borrow().iter().any(|process| Some(process.pid) == pid);
            let own = told.iter().filter(|osd| self.nodes.contains(&osd.node) && runs(osd.pid));
            let refusals = own.filter_map(|osd| {
                let reason = osd.start_refused.as_ref()?;
                Some(format!("{} is not started: {reason}", osd.osd))
            });
            let refusals: Vec<String> = refusals.collect();
            if !refusals.is_empty() {
                return Ok(refusals);
            }
            tokio::time::sleep(LOOK_FOR_REFUSALS_EVERY).await;
        }
    }

    fn tell(&self, label: &'static str, done: usize, total: usize) {
        self.steps.send_replace(Step { label, done: done.min(total) as u64, total: total as u64 });
    }

    fn osds_up(&self, map: &ClusterMap) -> usize {
        let own = map.osds.iter().filter(|(_, info)| self.nodes.contains(&info.node));
        own.filter(|(id, info)| info.address.is_some() && self.is_of_this_start(id, info)).count()
    }

    fn is_of_this_start(&self, id: &OsdId, info: &OsdInfo) -> bool {
        info.incarnation > self.incarnations.get(id).copied().unwrap_or(0)
    }

    /// What the manager answers, if it does and is a process of another host, or of this start: that has heard of no other.
    async fn ask<T: DeserializeOwned>(&self, path: &str) -> anyhow::Result<Option<T>> {
        let Some(record) = self.cluster.manager().await? else { return Ok(None) };
        let is_here = self.nodes.contains(&record.node);
        if is_here && !self.running.borrow().iter().any(|process| process.pid == record.pid) {
            return Ok(None);
        }
        Ok(self.inquiry.ask_once(&record, path).await)
    }

    /// What is wrong, without what only looks alive: OSDs of an earlier run whose leases have not yet ended are down.
    pub async fn verdict(&self) -> anyhow::Result<Health> {
        let mut map = self.cluster.map().await?;
        for (id, info) in &mut map.osds {
            if self.nodes.contains(&info.node) && !self.is_of_this_start(id, info) {
                info.address = None;
            }
        }
        let told: Option<(Vec<OsdView>, Vec<PgView>)> =
            match (self.ask("/api/v1/osds").await?, self.ask("/api/v1/pgs").await?) {
                (Some(osds), Some(pgs)) => Some((osds, pgs)),
                _ => None,
            };
        let Some((mut osds, pgs)) = told else {
            let silence = "nobody manages the cluster yet".to_owned();
            return Ok(self.inquiry.as_the_registry_knows(&map, silence).await?.status.overview.health);
        };
        for osd in &mut osds {
            osd.up = map.osds.get(&osd.osd).is_some_and(|info| info.address.is_some());
        }
        Ok(judge(&osds, &pgs, &view::pools(&map, &pgs), None))
    }

    async fn make_first_pool(&self, replicas: u32) -> anyhow::Result<()> {
        if self.cluster.map().await?.pool_named(FIRST_POOL).is_some() {
            return Ok(());
        }
        self.cluster
            .create_pool(FIRST_POOL, replicas, min_size_default(replicas), FIRST_POOL_PGS)
            .await
            .with_context(|| format!("cannot make the pool {FIRST_POOL}"))?;
        Ok(())
    }
}
