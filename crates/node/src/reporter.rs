//! Tells the manager how the OSDs of this process are, and what it logged, whoever manages at the moment: all of it on each new connection, then
//! what has changed, and at rest every two seconds that all is as before.
//!
//! Nothing waits for it: while no manager can be reached, nobody is told, and the OSDs go on.

use crate::manager_link::ToManager;
use api::board::Board;
use api::http::REPORTS_PATH;
use axum::http::StatusCode;
use base::NodeId;
use cluster::{Cluster, Known, ManagerRecord};
use manager::log::{LogReport, ProcessLog};
use manager::reports::{Report, Telling};
use std::path::PathBuf;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How often it is said that all is as before: thrice in the time after which nothing that was told is shown any more.
const CONFIRM_EVERY: Duration = Duration::from_secs(2);
/// The pause after something was told: what many OSDs have to say at once is one report.
const PAUSE: Duration = Duration::from_millis(100);
/// The pause before a connection is tried again, at first and at last.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(100);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Tells for ever how the OSDs are that tell it on `board`, as a process of `node`.
pub async fn report(node: NodeId, cluster: Cluster, to: ToManager, board: Board, log: ProcessLog) {
    let (mut managers, mut maps) = (to.manager.clone(), to.maps.clone());
    let mut pause = RETRY_PAUSE_MIN;
    let mut said = String::new();
    loop {
        let record = match managers.wait_for(|known| place_of(known).is_some()).await {
            Ok(known) => known.clone(),
            // It is kept current for as long as somebody looks.
            Err(_) => return,
        };
        let place = place_of(&record);
        let began = Instant::now();
        let encryption = maps.borrow_and_update().encryption;
        let trouble = tokio::select! {
            // On another connection, encrypted or not as everybody's are then.
            Ok(_) = maps.wait_for(|map| map.encryption != encryption) => continue,
            trouble = tell(&to, &board, &log) => trouble,
            _ = managers.wait_for(|known| place_of(known) != place) => continue,
        };
        if trouble != said {
            tracing::warn!(%node, "the manager is not told how the OSDs are: {trouble}");
            said = trouble;
        }
        if let Known::Is(record) = &record {
            depose_if_dead(node, &cluster, record).await;
        }
        if began.elapsed() > RETRY_PAUSE_MAX {
            pause = RETRY_PAUSE_MIN;
        }
        let is_another = tokio::select! {
            () = sleep(pause) => false,
            Ok(_) = managers.wait_for(|known| place_of(known) != place) => true,
        };
        // Another one is told at once: what went wrong was the one before.
        pause = if is_another { RETRY_PAUSE_MIN } else { (pause * 2).min(RETRY_PAUSE_MAX) };
    }
}

/// Which process the manager is, and where.
fn place_of(known: &Known<ManagerRecord>) -> Option<(NodeId, u32, std::net::SocketAddr)> {
    match known {
        Known::Is(record) => Some((record.node, record.pid, record.address?)),
        Known::NotYet | Known::Absent => None,
    }
}

/// Tells until the manager does not take it; answers why.
async fn tell(to: &ToManager, board: &Board, log: &ProcessLog) -> String {
    let mut link = match to.connect().await {
        Ok(link) => link,
        Err(reason) => return reason,
    };
    let mut telling = Telling::default();
    let mut logged = log.told_anew_after();
    loop {
        let mut reports = telling.news(&board.statuses());
        if reports.is_empty() {
            reports.push(Report::default());
        }
        let records = log.after(logged);
        if let (Some(newest), Some(report)) = (records.last(), reports.last_mut()) {
            logged = newest.number;
            report.log = Some(LogReport { pid: std::process::id(), records });
        }
        for report in reports {
            let json = serde_json::to_vec(&report).expect("plain data with text keys has a JSON form");
            match link.post(REPORTS_PATH, json.into()).await {
                Ok(answer) if answer.code == StatusCode::NO_CONTENT => {}
                Ok(answer) => return format!("it answered {}", String::from_utf8_lossy(&answer.body)),
                Err(reason) => return reason,
            }
        }
        sleep(PAUSE).await;
        tokio::select! {
            () = board.statuses_changed() => {}
            () = sleep(CONFIRM_EVERY) => {}
        }
    }
}

/// Ends the term of a manager that was a process of this very node and runs no more, instead of waiting for its lease: its node
/// was started anew.
async fn depose_if_dead(node: NodeId, cluster: &Cluster, record: &ManagerRecord) {
    let is_own = record.node == node && record.pid != std::process::id();
    if is_own && !PathBuf::from(format!("/proc/{}", record.pid)).exists() {
        // While the registry is away nobody is elected either.
        if let Ok(true) = cluster.depose_manager(record).await {
            tracing::info!(%node, pid = record.pid, "the manager was a process of this node that has ended; another is chosen");
        }
    }
}
