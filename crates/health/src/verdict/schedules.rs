//! Schedules whose snapshots could not be made.

use crate::codes::Code;
use crate::problem::Problem;
use base::calendar::stamp;
use base::schedule::LateSchedule;
use std::collections::BTreeMap;

/// The problems that late schedules are, by their names.
pub fn late(late: &BTreeMap<String, LateSchedule>) -> impl Iterator<Item = Problem> {
    late.iter().map(|(name, LateSchedule { slot_unix_seconds, volumes, reason })| {
        let of = match volumes.as_slice() {
            [one] => format!("volume {one}"),
            [one, ..] => format!("{} volumes, {one} among them,", volumes.len()),
            [] => "its volumes".to_owned(),
        };
        let since = stamp(*slot_unix_seconds);
        Problem::new(
            Code::SnapshotLate,
            format!("schedule {name} has made no snapshot of {of} since {since}, when one was due: {reason}"),
            "what is stored is not touched by it; there is no snapshot of that time",
            format!("do what the reason says; it is tried again all the time, until `millpond schedule pause {name}`"),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_that_is_late_is_named_with_its_volumes_and_why() {
        let of = |volumes: &[&str]| LateSchedule {
            slot_unix_seconds: 1_795_950_000,
            volumes: volumes.iter().map(|name| (*name).to_owned()).collect(),
            reason: "client 1 did not stand still".to_owned(),
        };
        let all = BTreeMap::from([("daily".to_owned(), of(&["v"])), ("hourly".to_owned(), of(&["v", "w"]))]);
        let problems: Vec<Problem> = late(&all).collect();
        let said: Vec<&str> = problems.iter().map(|problem| problem.what.as_str()).collect();
        assert_eq!(
            said,
            [
                "schedule daily has made no snapshot of volume v since 20261129T110000Z, when one was due: client 1 did not \
                 stand still",
                "schedule hourly has made no snapshot of 2 volumes, v among them, since 20261129T110000Z, when one was due: \
                 client 1 did not stand still",
            ]
        );
        assert!(problems.iter().all(|problem| problem.code == Code::SnapshotLate));
        assert!(problems[1].next.contains("schedule pause hourly"), "{}", problems[1].next);
    }
}
