//! The registry's history, kept short.
//!
//! Watches go on after a lost connection by what changed meanwhile; nobody asks for what is older. Etcd keeps all of it until
//! it is told to forget, and takes no change any more when its quota is used up.

use super::{Cluster, Result, keys};
use registry::Revision;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};

/// How far back history reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HistoryBounds {
    /// How old a change is at least before it is forgotten: longer than any connection is away without its watch beginning
    /// anew.
    pub keep: Duration,
    /// How often it is looked at: that much older a change may become.
    pub every: Duration,
}

impl Default for HistoryBounds {
    fn default() -> HistoryBounds {
        HistoryBounds { keep: Duration::from_secs(600), every: Duration::from_secs(60) }
    }
}

impl Cluster {
    /// Has the registry forget its history as it grows older, for as long as this is polled. One process of a cluster is
    /// enough; several do no harm. What fails is done the next time.
    pub async fn bound_history(&self, bounds: HistoryBounds) {
        let mut marks = Marks::default();
        let mut look = tokio::time::interval(bounds.every);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            if let Err(error) = self.forget(&mut marks, bounds.keep).await {
                tracing::debug!(%error, "the registry's history was not cut off");
            }
        }
    }

    async fn forget(&self, marks: &mut Marks, keep: Duration) -> Result<()> {
        // Any range tells it; this one has a key at most.
        let newest = self.registry.range(keys::MANAGER).await?.revision;
        let now = Instant::now();
        marks.note(now, newest);
        if let Some(old) = marks.older_than(now, keep) {
            self.registry.compact(old).await?;
            marks.forgot(old);
        }
        Ok(())
    }
}

/// Which revision was the newest when, of those that are not forgotten.
#[derive(Debug, Default)]
struct Marks {
    seen: VecDeque<(Instant, Revision)>,
    newest: Revision,
}

impl Marks {
    /// Notes the newest revision of a moment. While nothing changes its first moment counts.
    fn note(&mut self, now: Instant, newest: Revision) {
        if self.newest < newest {
            self.newest = newest;
            self.seen.push_back((now, newest));
        }
    }

    /// The newest revision that was there so long ago, if there is one to forget.
    fn older_than(&self, now: Instant, keep: Duration) -> Option<Revision> {
        let old = self.seen.iter().take_while(|(seen, _)| now.duration_since(*seen) >= keep);
        old.last().map(|(_, revision)| *revision)
    }

    fn forgot(&mut self, upto: Revision) {
        while self.seen.front().is_some_and(|(_, revision)| *revision <= upto) {
            self.seen.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_old_enough_is_forgotten_once() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let keep = Duration::from_secs(600);
        let mut marks = Marks::default();
        marks.note(at(0), Revision(10));
        marks.note(at(60), Revision(10));
        marks.note(at(120), Revision(15));
        marks.note(at(180), Revision(17));
        assert_eq!(marks.older_than(at(599), keep), None);
        assert_eq!(marks.older_than(at(600), keep), Some(Revision(10)));
        // It failed, and more is old by the next time.
        assert_eq!(marks.older_than(at(730), keep), Some(Revision(15)));
        marks.forgot(Revision(15));
        marks.note(at(730), Revision(17));
        assert_eq!(marks.older_than(at(779), keep), None);
        assert_eq!(marks.older_than(at(780), keep), Some(Revision(17)));
        marks.forgot(Revision(17));
        marks.note(at(5000), Revision(17));
        assert_eq!(marks.older_than(at(9000), keep), None, "at rest nothing is written");
    }
}
