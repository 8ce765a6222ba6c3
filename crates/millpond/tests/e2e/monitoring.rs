//! What an operator's tools see of a cluster: Prometheus' own checker, probes, `millpond health` and `top`.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

use crate::common::http::get;
use crate::common::pond::Pond;
use crate::common::whole::{becomes_whole, epochs};
use crate::common::{Process, command, names, path, text, wait_until};
use nix::sys::signal::Signal;
use registry::Connect;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::time::Instant;
use testkit::process::{Frozen, signal};

fn json(address: &str, path: &str) -> (u16, Value) {
    let (code, _, body) = get(address, path);
    (code, serde_json::from_str(&body).unwrap())
}

/// Everything that all processes tell.
fn metrics(pond: &Pond) -> String {
    pond.http_addresses().iter().map(|target| get(target, "/metrics").2).collect()
}

/// The sum of the samples of that name whose labels have all of these.
fn sum(metrics: &str, name: &str, labels: &[&str]) -> f64 {
    let samples = metrics.lines().filter(|line| !line.starts_with('#'));
    let of_name = samples.filter(|line| line.split(['{', ' ']).next() == Some(name));
    let chosen = of_name.filter(|line| labels.iter().all(|label| line.contains(label)));
    chosen.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Runs `promtool` on a text, which must please it.
fn promtool(arguments: &[&str], input: &str) {
    let mut child = Command::new("promtool")
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("promtool: {error}; run make deps"));
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "promtool {arguments:?}: {}\n{input}", text(&output));
}

/// The names of metrics in a text, without what a histogram or a recording adds.
fn names_in(text: &str) -> BTreeSet<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("millpond_")).map(str::to_owned).collect()
}

fn contrib(name: &str) -> String {
    let path = format!("{}/../../contrib/{name}", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// `health` with its exit code.
fn health(pond: &Pond) -> (Option<i32>, Value) {
    let output = command(&["health", "--json", "--dir", path(&pond.dir())]).output().unwrap();
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap())
}

fn codes(health: &Value) -> BTreeSet<&str> {
    health["problems"].as_array().unwrap().iter().map(|problem| problem["code"].as_str().unwrap()).collect()
}

#[test]
fn figures_grow_by_what_was_done_and_every_tool_understands_them() {
    let pond = Pond::start_with(&["--osd-size", "512MiB"]);
    pond.volume("disk", "64MiB");
    wait_until("every process is announced", || pond.http_addresses().len() == 3);

    let job = ["--rw", "randwrite", "--iodepth", "16", "--io-size", "8MiB"];
    let bench = pond.json(&[&["bench", "--target", "volume:disk"], &job[..]].concat());
    let written = 2048.0;
    assert_eq!(bench["write"]["operations"].as_f64(), Some(written), "{bench}");
    let of_writes = |metrics: &str, name| sum(metrics, name, &["operation=\"write\""]);
    let mut text = String::new();
    wait_until("the OSDs told all they did, and all is well", || {
        text = metrics(&pond);
        of_writes(&text, "millpond_osd_operations_total") >= written
            && sum(&text, "millpond_health_level", &[]) == 0.0
    });
    for (name, expected) in [
        ("millpond_osd_operations_total", written),
        ("millpond_osd_operation_bytes_total", written * 4096.0),
        ("millpond_osd_operation_duration_seconds_count", written),
        ("millpond_volume_operations_total", written),
        ("millpond_pool_operations_total", written),
        ("millpond_pool_operation_bytes_total", written * 4096.0),
        ("millpond_osd_operation_errors_total", 0.0),
    ] {
        assert_eq!(of_writes(&text, name), expected, "{name}");
    }
    let replicated =
        |metrics: &str| sum(metrics, "millpond_osd_operations_total", &["operation=\"replicate\""]);
    wait_until("the replicas told what they did", || replicated(&metrics(&pond)) >= 2.0 * written);
    assert!(sum(&text, "millpond_osd_cpu_seconds_total", &[]) > 0.0, "{text}");
    assert_eq!(sum(&text, "millpond_manager", &[]), 1.0, "one of them manages");

    let targets = pond.http_addresses();
    for target in &targets {
        let (code, head, body) = get(target, "/metrics");
        assert_eq!(code, 200);
        assert!(head.contains("content-type: text/plain; version=0.0.4"), "{head}");
        promtool(&["check", "metrics"], &body);
        assert_eq!(json(target, "/health").0, 200);
        // Every process answers for the whole cluster, as the commands do.
        for (at, command) in
            [("pools", ["pool", "ls"]), ("volumes", ["volume", "ls"]), ("trash", ["volume", "trash"])]
        {
            assert_eq!(json(target, &format!("/api/v1/{at}")), (200, pond.json(&command)));
        }
    }

    let rules = "prometheus/millpond.rules.yml";
    let file = format!("{}/../../contrib/{rules}", env!("CARGO_MANIFEST_DIR"));
    promtool(&["check", "rules", &file], "");
    promtool(&["test", "rules", &file.replace(".rules.yml", ".rules.test.yml")], "");
    let exported = names_in(&text);
    for shipped in [rules, "grafana/millpond.json"] {
        let used = names_in(&contrib(shipped));
        assert!(used.len() >= 5, "{shipped}: {used:?}");
        let unknown: Vec<&String> = used.difference(&exported).collect();
        assert!(unknown.is_empty(), "{shipped} asks for what nobody exports: {unknown:?}");
    }
    let dashboard: Value = serde_json::from_str(&contrib("grafana/millpond.json")).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 10);

    // Under load.
    let mut load = command(&["bench", "--target", "volume:disk", "--rw", "randrw", "--iodepth", "8"]);
    load.args(["--runtime", "600", "--dir", path(&pond.dir())]);
    let mut load = Process::start(&mut load, &pond.scratch().join("load.log"));
    wait_until("the load is seen", || {
        sum(&metrics(&pond), "millpond_osd_operations_total", &["operation=\"read\""]) > 0.0
    });
    let sample = pond.json(&["top", "--interval", "2"]);
    let table = pond.run(&["top", "--once", "--interval", "1"]);
    load.is_asked_to_end();
    load.ends();
    let positive =
        |pointer: &str| sample.pointer(pointer).and_then(Value::as_f64).is_some_and(|rate| rate > 0.0);
    for pointer in [
        "/total/reads_per_s",
        "/total/writes_per_s",
        "/total/read_p99_us",
        "/total/write_p50_us",
        "/total/cpu_us_per_operation",
        "/pools/0/reads_per_s",
        "/volumes/0/written_bytes_per_s",
        "/clients/0/reads_per_s",
    ] {
        assert!(positive(pointer), "{pointer}: {sample:#}");
    }
    assert_eq!(sample["osds"].as_array().unwrap().len(), 3);
    assert_eq!(sample["volumes"][0]["name"], "disk");
    names(&table, &["osd.0", "total", "disk", "default", "operations/s"]);
}

#[test]
fn a_lost_node_is_told_by_its_code_and_slow_scrapers_hold_nobody_up() {
    let pond = Pond::start_with(&["--osd-size", "256MiB", "--no-restart"]);
    wait_until("every process is announced", || pond.http_addresses().len() == 3);
    wait_until("all is well", || health(&pond).1["level"] == "ok");
    let incarnations = |pond: &Pond| -> BTreeMap<String, Value> {
        let status = pond.status();
        let osds = status["osds"].as_array().unwrap().iter();
        osds.map(|osd| (osd["osd"].to_string(), osd["incarnation"].clone())).collect()
    };
    let before = incarnations(&pond);
    let address = pond.http_addresses()[0].clone();
    // More than are served at a time, and none of them says anything.
    let idle: Vec<TcpStream> = (0..40).map(|_| TcpStream::connect(&address).unwrap()).collect();
    let asked = Instant::now();
    assert_eq!(get(&address, "/metrics").0, 200);
    println!("answered after {:?}, behind {} silent connections", asked.elapsed(), idle.len());
    drop(idle);
    assert_eq!(incarnations(&pond), before, "a lease ended meanwhile");
    wait_until("a probe is told that all is well", || {
        health(&pond) == (Some(0), serde_json::json!({"level": "ok", "problems": []}))
    });

    let pid_of = |osd: usize| pond.status()["osds"][osd]["pid"].as_i64().unwrap() as i32;
    let (second, third) = (pid_of(1), pid_of(2));
    let here = {
        let first = pid_of(0) as u32;
        let is_first = |target: &String| json(target, "/api/v1/figures").1["pid"] == first;
        pond.http_addresses().into_iter().find(is_first).unwrap()
    };
    becomes_whole(&pond);
    signal(third, Signal::SIGKILL);
    wait_until("the others serve without it, and a probe is told so", || {
        let (code, health) = json(&here, "/health");
        code == 200 && codes(&health) == BTreeSet::from(["OSD_DOWN", "PG_DEGRADED"])
    });
    let (code, verdict) = health(&pond);
    assert_eq!((code, &verdict["level"]), (Some(0), &Value::from("warning")));
    wait_until("its metrics are no longer asked for", || pond.http_addresses().len() == 2);

    signal(second, Signal::SIGKILL);
    wait_until("a probe is told that too few are left", || {
        let (code, health) = json(&here, "/health");
        code == 503 && (codes(&health).contains("PG_WAITING") || codes(&health).contains("PG_STOPPED"))
    });
    let (code, verdict) = health(&pond);
    assert_eq!((code, &verdict["level"]), (Some(1), &Value::from("error")));
    let down = |text: &str| sum(text, "millpond_health_problems", &["code=\"OSD_DOWN\""]);
    wait_until("the last one manages, and tells that the others are down", || {
        down(&get(&here, "/metrics").2) == 2.0
    });
    let text = get(&here, "/metrics").2;
    assert_eq!(sum(&text, "millpond_manager", &[]), 1.0, "{text}");
    assert_eq!(sum(&text, "millpond_health_level", &[]), 2.0, "{text}");
    assert_eq!(sum(&text, "millpond_osds", &["state=\"down\""]), 2.0, "{text}");
    let printed = pond.run(&["status"]);
    names(&printed, &["- OSD_DOWN: osd.1", "next: "]);
    pond.down();
    assert!(pond.http_addresses().is_empty(), "nothing is up, and nothing is to be scraped");
}

/// The registry's revision: how many transactions have changed something.
fn revision(pond: &Pond) -> u64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let location = node::Location::Socket(pond.dir().join("registry.sock"));
        location.connect().await.unwrap().range("millpond/manager").await.unwrap().revision.0
    })
}

#[test]
fn how_osds_are_is_not_written_to_the_registry_and_known_again_when_the_manager_was_killed() {
    let pond = Pond::start_with(&["--osd-size", "512MiB"]);
    pond.volume("disk", "256MiB");
    wait_until("all is well", || health(&pond).1["level"] == "ok");
    let used = |status: &Value| status["capacity"]["used_bytes"].as_u64().unwrap();
    let (before, used_before) = (revision(&pond), used(&pond.status()));
    // A machine that is busy may have a group begin anew, which is one transaction.
    let begun = || epochs(&pond).iter().sum::<u64>();
    let begun_before = begun();
    let written =
        ["bench", "--target", "volume:disk", "--rw", "randwrite", "--runtime", "8", "--iodepth", "8"];
    pond.run(&written);
    wait_until("what was written is seen", || used(&pond.status()) > used_before);
    let begun_meanwhile = begun() - begun_before;
    let changes = revision(&pond) - before - begun_meanwhile;
    // The volume was attached and detached.
    assert!(changes <= 8, "{changes} transactions for data that was written");

    let manager = |status: &Value| {
        (status["manager"]["pid"].as_i64().unwrap() as i32, status["manager"]["node"].clone())
    };
    let (pid, _) = manager(&pond.status());
    signal(pid, Signal::SIGKILL);
    let asked = Instant::now();
    let status = pond.status();
    println!("status was known {:?} after the manager was killed", asked.elapsed());
    assert_ne!(manager(&status).0, pid);
    wait_until("all is well again, and every OSD tells so", || {
        let status = pond.status();
        let osds = status["osds"].as_array().unwrap();
        status["health"]["level"] == "ok" && osds.iter().all(|osd| osd["used_bytes"].is_u64())
    });
    let text = pond.run(&["status"]);
    names(&text, &["manager  node.", "what it was told is"]);

    // No process can manage it, and the registry is there: what it knows is shown, and that more is not known.
    let stopped: Vec<Frozen> = pond.node_pids().into_iter().map(Frozen::new).collect();
    let (worked, printed, complaint) = pond.attempt(&["status"]);
    let (has_log, _, why_not) = pond.attempt(&["log"]);
    drop(stopped);
    assert!(worked, "{complaint}");
    names(&printed, &["MANAGER_SILENT", "manager  silent", "space    unavailable"]);
    names(&complaint, &["shown is what the registry knows"]);
    assert!(!has_log);
    names(&why_not, &["node.N.log in its directory"]);
    wait_until("all is well at last", || health(&pond).1["level"] == "ok");
}

#[test]
fn what_the_nodes_log_is_shown_in_one_place() {
    let pond = Pond::start_with(&["--osd-size", "512MiB"]);
    let status = pond.status();
    let manager = status["manager"]["node"].as_u64().unwrap();
    let victim = usize::from(manager == 0);
    let pid = status["osds"][victim]["pid"].as_i64().unwrap();
    signal(pid as i32, Signal::SIGKILL);
    let logged = |arguments: &[&str]| -> Vec<Value> {
        let printed = pond.run(&[&["log", "--json"], arguments].concat());
        printed.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
    };
    let node = victim.to_string();
    wait_until("the new process and the manager tell of it", || {
        let all = logged(&[]);
        let has = |node: u64, what: &str, pid: Option<i64>| {
            all.iter().any(|line| {
                line["node"].as_u64() == Some(node)
                    && line["text"].as_str().is_some_and(|text| text.starts_with(what))
                    && pid.is_none_or(|pid| line["pid"].as_i64() != Some(pid))
            })
        };
        has(victim as u64, "the store is open", Some(pid))
            && has(manager, &format!("osd.{victim} on node.{victim} "), None)
    });
    let own = logged(&["--node", &node, "--lines", "3"]);
    assert!(own.len() == 3 && own.iter().all(|line| line["node"].as_u64() == Some(victim as u64)), "{own:?}");
    assert!(logged(&["--level", "error"]).is_empty());
    let text = pond.run(&["log"]);
    names(&text, &["Z  INFO node.", "node::shard: the store is open osd=osd.0"]);
    // Logs name addresses and keys: whoever merely reaches a process's port is not told.
    wait_until("the addresses are those of now", || {
        pond.http_addresses().iter().all(|address| TcpStream::connect(address.as_str()).is_ok())
    });
    for address in pond.http_addresses() {
        assert_eq!(get(&address, "/api/v1/log").0, 404);
    }
}
