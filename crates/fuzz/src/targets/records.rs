//! What is kept in a registry, what clients ask of nodes, and what these tell the manager, all of it JSON. It is refused, or
//! written as it was read.

use super::choices::{self, Choice};
use crate::outcomes::{Outcome, Outcomes};
use base::Principal;
use base::map::{ClusterMap, NodeInfo, OsdInfo, PgConfig, PoolInfo, VolumeInfo};
use cluster::{
    Attach, AttachRecord, Attachment, Fenced, Grant, HttpRecord, ManagerRecord, MoveRecord, Resume,
    ScrubRecord, ScrubWish, Settings,
};
use manager::reports::Report;
use registry::Value;
use registry::implement::{Answer, Request};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// By the first byte of an input: what the rest is taken for, and an example.
const KINDS: [Choice; 21] = [
    (
        "node",
        reads_back::<NodeInfo>,
        r#"{"host":"a","location":{"rack":"r1"},"client_port":"10.0.0.1:6480"}"#,
    ),
    (
        "OSD",
        reads_back::<OsdInfo>,
        r#"{"uuid":"02020202-0202-0202-0202-020202020202","node":1,"bytes":4096,"address":"[::1]:7000",
            "incarnation":3,"admission":"out_while_down","device_class":"nvme","reweight":500}"#,
    ),
    (
        "pool",
        reads_back::<PoolInfo>,
        r#"{"name":"pool","size":3,"min_size":2,"pg_count":64,"split_to":128,"pg_autoscale":true,
            "rule":{"failure_domain":"rack","device_class":"ssd"}}"#,
    ),
    (
        "group",
        reads_back::<PgConfig>,
        r#"{"epoch":3,"primary":1,"in_sync":[1,2],"learners":[4],"history":2}"#,
    ),
    (
        "volume",
        reads_back::<VolumeInfo>,
        r#"{"name":"disk","pool":1,"bytes":1073741824,"generation":7,"removed":false}"#,
    ),
    (
        "map",
        reads_back::<ClusterMap>,
        r#"{"revision":9,"cluster":"07070707-0707-0707-0707-070707070707","osds":{},"pools":{},
            "pgs":{"1.0":{"epoch":3,"primary":1,"in_sync":[1]}},"targets":{"1.0":[1,2]},"volumes":{}}"#,
    ),
    (
        "principal",
        reads_back::<Principal>,
        r#"{"public_key":"ed25519:0011223344556677001122334455667700112233445566770011223344556677",
            "access":{"pools":{"1":"read_write"}}}"#,
    ),
    (
        "attached",
        reads_back::<AttachRecord>,
        r#"{"client":5,"shared":true,"generation":1,"description":"millpond nbd","principal":"tenant"}"#,
    ),
    (
        "attachment",
        reads_back::<Attachment>,
        r#"{"id":1,"client":5,"info":{"name":"disk","pool":1,"bytes":4096},"generation":2,"unfenced":[]}"#,
    ),
    ("HTTP", reads_back::<HttpRecord>, r#"{"node":1,"pid":2,"address":"127.0.0.1:9000"}"#),
    ("manager", reads_back::<ManagerRecord>, r#"{"node":1,"pid":2,"address":"10.0.0.1:9001"}"#),
    (
        "move",
        reads_back::<MoveRecord>,
        r#"{"attempt":"02020202-0202-0202-0202-020202020202","cluster":"07070707-0707-0707-0707-070707070707",
            "source":"a","target":"b","at_unix_seconds":1700000000}"#,
    ),
    ("scrub", reads_back::<ScrubRecord>, r#"{"light_ms":1,"deep_ms":2,"objects":3}"#),
    ("wish", reads_back::<ScrubWish>, r#"{"at_ms":1,"deep":true}"#),
    ("settings", reads_back::<Settings>, r#"{"osd_out_after_seconds":600}"#),
    (
        "attach",
        reads_back::<Attach>,
        r#"{"volume":"disk","client":5,"lease":7,"shared":false,"description":"millpond nbd"}"#,
    ),
    ("resume", reads_back::<Resume>, r#"{"volume":1,"client":5,"generation":2,"lease":7}"#),
    (
        "other question",
        |bytes| reads_back::<Fenced>(bytes) || reads_back::<Grant>(bytes),
        r#"{"volume":1,"client":5,"generation":2}"#,
    ),
    (
        "request",
        reads_back::<Request>,
        r#"{"txn":{"compares":[{"exists":"a"}],"then":[{"get":{"key":"a"}}],"otherwise":[]}}"#,
    ),
    ("answer", |bytes| reads_back::<Answer>(bytes) || reads_back::<Value>(bytes), r#"{"base64":"AAEC"}"#),
    // It has a number with decimals, of which the last digit may be another when it is read.
    (
        "report",
        |bytes| serde_json::from_slice::<Report>(bytes).is_ok(),
        r#"{"osds":[{"osd":1,"anew":true,"pgs_gone":["1.5"]}],"ended":[2]}"#,
    ),
];

fn reads_back<T: Serialize + DeserializeOwned>(bytes: &[u8]) -> bool {
    let Ok(value) = serde_json::from_slice::<T>(bytes) else { return false };
    let written = serde_json::to_vec(&value).expect("what was read has a JSON form");
    let again: T = serde_json::from_slice(&written).expect("what was written can be read");
    assert!(serde_json::to_vec(&again).is_ok_and(|twice| twice == written), "it is written as it was read");
    true
}

pub(super) fn run(input: &[u8], seen: &mut Outcomes) {
    choices::run(&KINDS, input, seen);
}

pub(super) fn examples() -> Vec<Vec<u8>> {
    choices::examples(&KINDS)
}

pub(super) fn expected() -> Vec<Outcome> {
    choices::expected(&KINDS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_example_is_read() {
        choices::assert_every_example_is_read(&KINDS);
    }
}
