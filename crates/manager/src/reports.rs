//! What a process of a node tells the manager: how its OSDs are, and then what of that has changed.
//!
//! A report is true only behind those before it on the same connection: on a new one all is told anew. [`Telling`] makes
//! them; [`crate::collector`] takes them.

use crate::log::LogReport;
use base::status::{OsdStatus, PgStatus, Statuses};
use base::{OsdId, PgId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Placement groups that one report tells of, so that none is large.
const GROUPS_PER_REPORT_MAX: usize = 4096;
/// OSDs that one report tells of.
const OSDS_PER_REPORT_MAX: usize = 256;

/// What has changed: the body of a `POST /api/v1/reports`. One that tells of nothing says that all is as before.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// What is new of these.
    pub osds: Vec<OsdReport>,
    /// These have ended.
    pub ended: Vec<OsdId>,
    /// What the process logged.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log: Option<LogReport>,
}

/// What is new of an OSD.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OsdReport {
    /// The OSD.
    pub osd: OsdId,
    /// Nothing that was told of it before holds.
    #[serde(default)]
    pub anew: bool,
    /// How it is, without its groups. None: as before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<OsdStatus>,
    /// How these of its groups are.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub pgs: BTreeMap<PgId, PgStatus>,
    /// It is no longer the primary of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pgs_gone: Vec<PgId>,
}

/// What was told on a connection.
#[derive(Debug, Default)]
pub struct Telling {
    told: Statuses,
}

impl Telling {
    /// The reports that tell what has changed up to `now`, in their order; none if nothing has. They count as told: if one of
    /// them is not taken, begin with a new connection.
    pub fn news(&mut self, now: &Statuses) -> Vec<Report> {
        let mut batch = Batch::default();
        let ended: Vec<OsdId> = self.told.keys().filter(|osd| !now.contains_key(osd)).copied().collect();
        for osd in ended {
            self.told.remove(&osd);
            batch.last().ended.push(osd);
        }
        for (&osd, status) in now {
            match self.told.insert(osd, status.clone()) {
                Some(before) if Arc::ptr_eq(&before, status) => {}
                before => batch.add(osd, before.as_deref(), status),
            }
        }
        batch.reports
    }
}

/// Reports that fill up.
#[derive(Default)]
struct Batch {
    reports: Vec<Report>,
    groups: usize,
}

impl Batch {
    /// The one that is not full.
    fn last(&mut self) -> &mut Report {
        let is_full = |report: &Report| report.osds.len() >= OSDS_PER_REPORT_MAX;
        if self.groups >= GROUPS_PER_REPORT_MAX || self.reports.last().is_none_or(is_full) {
            self.reports.push(Report::default());
            self.groups = 0;
        }
        self.reports.last_mut().expect("one was pushed if there was none")
    }

    /// How many groups that one may still tell of.
    fn room(&mut self) -> usize {
        self.last();
        GROUPS_PER_REPORT_MAX - self.groups
    }

    /// Adds what is new of an OSD, if anything is.
    fn add(&mut self, osd: OsdId, before: Option<&OsdStatus>, now: &OsdStatus) {
        let without_groups = |status: &OsdStatus| OsdStatus { pgs: BTreeMap::new(), ..status.clone() };
        let known = |pg: &PgId| before.and_then(|before| before.pgs.get(pg));
        let status = Some(without_groups(now)).filter(|new| before.map(without_groups).as_ref() != Some(new));
        let known_before = before.into_iter().flat_map(|before| before.pgs.keys());
        let mut gone = known_before.filter(|pg| !now.pgs.contains_key(pg)).copied().peekable();
        let mut changed = now.pgs.iter().filter(|(pg, status)| known(pg) != Some(status)).peekable();
        if status.is_none() && gone.peek().is_none() && changed.peek().is_none() {
            return;
        }
        let anew = before.is_none();
        let mut report = OsdReport { osd, anew, status, pgs: BTreeMap::new(), pgs_gone: Vec::new() };
        loop {
            let room = self.room();
            report.pgs_gone = gone.by_ref().take(room).collect();
            let some = changed.by_ref().take(room - report.pgs_gone.len());
            report.pgs = some.map(|(pg, status)| (*pg, status.clone())).collect();
            let groups = report.pgs_gone.len() + report.pgs.len();
            self.last().osds.push(report);
            self.groups += groups;
            if gone.peek().is_none() && changed.peek().is_none() {
                return;
            }
            report = OsdReport { osd, anew: false, status: None, pgs: BTreeMap::new(), pgs_gone: Vec::new() };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::status::PgState;
    use base::{Epoch, PoolId};

    fn pg(index: u32) -> PgId {
        PgId { pool: PoolId(1), index }
    }

    fn told(groups: u32) -> Arc<OsdStatus> {
        let of = |index| {
            let state = PgState::Active;
            let (epoch, cut_through, flatten) = (Epoch(1), Default::default(), Default::default());
            let in_sync = vec![];
            (pg(index), PgStatus { epoch, state, in_sync, objects: 0, recovery: None, cut_through, flatten })
        };
        Arc::new(OsdStatus { used_bytes: 1, pgs: (0..groups).map(of).collect(), ..OsdStatus::default() })
    }

    fn change(told: &mut Arc<OsdStatus>, change: impl FnOnce(&mut OsdStatus)) {
        change(Arc::make_mut(told));
    }

    #[test]
    fn only_what_has_changed_is_told() {
        let mut telling = Telling::default();
        let mut now = BTreeMap::from([(OsdId(0), told(3)), (OsdId(1), told(1))]);
        let first = telling.news(&now);
        assert_eq!(first.len(), 1);
        assert_eq!(
            first[0].osds.iter().map(|osd| (osd.osd.0, osd.anew, osd.pgs.len())).collect::<Vec<_>>(),
            [(0, true, 3), (1, true, 1)]
        );
        assert_eq!(telling.news(&now), []);

        // As good as the same.
        change(now.get_mut(&OsdId(1)).unwrap(), |_| {});
        assert_eq!(telling.news(&now), []);
        change(now.get_mut(&OsdId(0)).unwrap(), |status| {
            status.pgs.remove(&pg(2));
            status.pgs.get_mut(&pg(1)).unwrap().objects = 7;
        });
        let second = telling.news(&now);
        let osd = &second[0].osds[0];
        assert_eq!((second.len(), second[0].osds.len(), osd.anew, &osd.status), (1, 1, false, &None));
        assert_eq!(
            osd.pgs.iter().map(|(pg, status)| (*pg, status.objects)).collect::<Vec<_>>(),
            [(pg(1), 7)]
        );
        assert_eq!(osd.pgs_gone, [pg(2)]);

        change(now.get_mut(&OsdId(0)).unwrap(), |status| status.used_bytes = 2);
        let third = telling.news(&now);
        assert_eq!(third[0].osds[0].status.as_ref().map(|status| status.used_bytes), Some(2));
        assert!(third[0].osds[0].pgs.is_empty());

        now.remove(&OsdId(1));
        assert_eq!(telling.news(&now), [Report { ended: vec![OsdId(1)], ..Report::default() }]);
        // One that comes back is told anew.
        now.insert(OsdId(1), told(1));
        assert!(telling.news(&now)[0].osds[0].anew);
    }

    #[test]
    fn no_report_is_large() {
        let mut telling = Telling::default();
        let many = GROUPS_PER_REPORT_MAX as u32 * 2 + 1;
        let groups = |reports: &[Report]| -> Vec<usize> {
            let of = |osd: &OsdReport| osd.pgs.len() + osd.pgs_gone.len();
            reports.iter().map(|report| report.osds.iter().map(of).sum()).collect()
        };
        let anew = |reports: &[Report]| {
            reports.iter().flat_map(|report| &report.osds).map(|osd| osd.anew).collect::<Vec<bool>>()
        };
        // Those of one OSD fill up what those of another left.
        let reports = telling.news(&BTreeMap::from([(OsdId(0), told(5)), (OsdId(1), told(many))]));
        assert_eq!(groups(&reports), [GROUPS_PER_REPORT_MAX, GROUPS_PER_REPORT_MAX, 6]);
        assert_eq!(anew(&reports), [true, true, false, false]);
        // So do those that are gone.
        let mut fewer = told(1);
        change(&mut fewer, |status| status.pgs.get_mut(&pg(0)).unwrap().objects = 7);
        let reports = telling.news(&BTreeMap::from([(OsdId(0), told(5)), (OsdId(1), fewer)]));
        assert_eq!(groups(&reports), [GROUPS_PER_REPORT_MAX, GROUPS_PER_REPORT_MAX, 1]);
        assert_eq!(anew(&reports), [false; 3]);
        let osds = (0..OSDS_PER_REPORT_MAX as u32 + 1).map(|osd| (OsdId(osd), told(0))).collect();
        assert_eq!(Telling::default().news(&osds).len(), 2);
    }

    #[test]
    fn a_report_reads_back_what_it_says() {
        let reports = Telling::default().news(&BTreeMap::from([(OsdId(0), told(3))]));
        let text = serde_json::to_string(&reports[0]).unwrap();
        assert_eq!(serde_json::from_str::<Report>(&text).unwrap(), reports[0]);
        assert_eq!(serde_json::from_str::<Report>("{}").unwrap(), Report::default());
    }
}
