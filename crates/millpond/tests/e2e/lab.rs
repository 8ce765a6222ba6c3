//! Plans run by the program as a user runs it: what it keeps, what it does not trust, and what is left when it is stopped.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on ends by panicking")]

use crate::common::pond::{Pond, runs};
use crate::common::{command, names, path, scratch, wait_until};
use ::lab::engine::cpu::parent_of;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use procfs::process::{Process, all_processes};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};
use testkit::prerequisites::{installed, is_root};

/// A file that stands for a device, of so many MiB.
fn device(directory: &Path, name: &str, mib: u64) -> PathBuf {
    let path = directory.join(name);
    std::fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
    path
}

/// Writes a plan of one device there.
fn plan_of(directory: &Path, more: &str) -> PathBuf {
    let device = device(directory, "device", 16);
    let text = format!(
        "name = \"e2e\"\nrounds = 1\nruntime = 1\nramp_time = 0\n{more}\n[[subject]]\nname = \"device\"\nraw = \"{}\"\n\
         overwrite = true\n[[job]]\nname = \"job\"\nrw = \"randrw\"\niodepth = 4\n",
        path(&device)
    );
    let plan = directory.join("plan.toml");
    std::fs::write(&plan, text).unwrap();
    plan
}

fn lab(arguments: &[&str]) -> Output {
    command(&[&["lab"], arguments].concat()).output().unwrap()
}

/// What it printed, of a call that worked.
fn worked(output: &Output) -> String {
    let (out, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{errors}");
    out.into_owned()
}

fn kept(archive: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(archive.join("run.json")).unwrap()).unwrap()
}

fn codes(outcome: &Value) -> Vec<String> {
    let findings = outcome["findings"].as_array().unwrap();
    findings.iter().map(|finding| finding["code"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_plan_on_a_device_and_a_volume_is_kept_told_and_compared() {
    let pond = Pond::start("1GiB");
    pond.volume("disk", &(32 << 20).to_string());
    let directory = scratch();
    let plan = plan_of(directory.path(), "title = \"A <b>bold</b> claim\"\ncontrol = true\nthreads = true");
    let more = format!(
        "[[subject]]\nname = \"volume\"\nvolume = \"disk\"\noverwrite = true\ndir = \"{}\"\n[[event]]\nname = \"a scrub\"\nat = 0.2\n\
         job = \"job\"\nsubject = \"volume\"\nrun = \"{} --dir {{dir}} scrub ls\"\n",
        path(&pond.dir()),
        env!("CARGO_BIN_EXE_millpond")
    );
    std::fs::write(&plan, std::fs::read_to_string(&plan).unwrap() + &more).unwrap();
    let explained = worked(&lab(&["explain", path(&plan)]));
    names(&explained, &["filled first: what it holds is lost", "volume:disk", "a scrub"]);
    let [first, other] = ["first", "other"].map(|name| directory.path().join(name));
    for out in [&first, &other] {
        let told = worked(&lab(&["run", path(&plan), "--out", path(out)]));
        names(&told, &["device", "volume", "by device", "A/A", "IOPS", "p99.9 µs", "nodes CPU µs/op"]);
        for file in [
            "plan.toml",
            "run.json",
            "latency.hlog",
            "seconds.csv",
            "metrics.txt",
            "report.md",
            "report.html",
        ] {
            assert!(out.join(file).metadata().unwrap().len() > 100, "{file}");
        }
        assert!(!out.join("scratch").exists());
    }
    let outcome = kept(&first);
    let samples = outcome["samples"].as_array().unwrap();
    assert_eq!(samples.len(), 3);
    for sample in samples {
        let served = &sample["served"];
        if sample["subject"] == 1 {
            // What its OSDs served is what was asked for, to the byte.
            assert_eq!(served["read_bytes"], served["asked_read_bytes"], "{served}");
            assert_eq!(served["written_bytes"], served["asked_written_bytes"], "{served}");
            assert_eq!(sample["events"][0]["name"], "a scrub");
            assert!(sample["events"][0]["failed"].is_null(), "{}", sample["events"]);
            assert!(sample["cpu"]["nodes_us_per_operation"].as_f64().unwrap() > 0.0);
        }
        assert!(sample["contents"]["read"]["looked"].as_u64().unwrap() > 0);
        assert!(sample["threads"]["places"].as_array().unwrap().len() > 1, "{}", sample["threads"]);
    }
    for code in ["counts", "errors", "compresses", "repeats", "agents", "cut-short"] {
        assert!(!codes(&outcome).iter().any(|found| found == code), "{}", outcome["findings"]);
    }
    // All was read that was written; but of so small a volume a cluster is nearly empty.
    let findings = outcome["findings"].as_array().unwrap();
    let empty: Vec<&str> = findings
        .iter()
        .filter(|finding| finding["code"] == "empty")
        .filter_map(|finding| finding["text"].as_str())
        .collect();
    assert!(matches!(empty.as_slice(), [one] if one.starts_with("the cluster of volume is")), "{empty:?}");
    let page = std::fs::read_to_string(first.join("report.html")).unwrap();
    names(&page, &["A &lt;b&gt;bold&lt;/b&gt; claim", "<svg", "default-src 'none'", "io_uring_enter"]);
    // A name, which nobody asks for anything.
    let page = page.replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
    assert!(
        page.len() < 500_000
            && !page.contains("<script")
            && !page.contains("http://")
            && !page.contains("https://")
    );
    // What a killed run lacks is made from what there is.
    std::fs::remove_file(first.join("report.html")).unwrap();
    names(
        &worked(&lab(&["report", path(&first), "--markdown"])),
        &["| job | figure |", "## A &lt;b>bold&lt;/b> claim"],
    );
    assert!(first.join("report.html").exists());
    let compared = worked(&lab(&["compare", path(&first), path(&other)]));
    names(&compared, &["job on device", "job on volume", "by first", "not measured in turns"]);
    let again = lab(&["run", path(&plan), "--out", path(&first)]);
    names(&String::from_utf8_lossy(&again.stderr), &["is there already", "--out"]);
    let none = lab(&["report", path(directory.path())]);
    names(&String::from_utf8_lossy(&none.stderr), &["is no archive of a run", "millpond lab run"]);
}

#[test]
fn zeros_empty_subjects_and_rates_that_cannot_be_had_are_not_trusted() {
    let directory = scratch();
    let plan = plan_of(directory.path(), "");
    let text = std::fs::read_to_string(&plan).unwrap();
    let run = |change: &dyn Fn(&str) -> String, out: &str| {
        std::fs::write(&plan, change(&text)).unwrap();
        let out = directory.path().join(out);
        names(&worked(&lab(&["run", path(&plan), "--out", path(&out)])), &["NOT TO BE TRUSTED"]);
        codes(&kept(&out))
    };
    let zeros = run(&|text| text.to_owned() + "zero_buffers = true\n", "zeros");
    assert!(zeros.contains(&"compresses".to_owned()), "{zeros:?}");
    let empty = run(
        &|text| {
            let reads = text.replace("randrw", "randread").replace("overwrite = true", "prefill = false");
            std::fs::write(directory.path().join("device"), vec![0; 16 << 20]).unwrap();
            reads
        },
        "empty",
    );
    assert!(empty.contains(&"empty".to_owned()), "{empty:?}");
    let rate = run(&|text| text.to_owned() + "rate_iops = 100000000\n", "rate");
    assert!(rate.contains(&"rate".to_owned()), "{rate:?}");
    // A neighbour that takes a core.
    let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let neighbour = run(&|text| text.to_owned(), "neighbour");
    busy.kill().unwrap();
    busy.wait().unwrap();
    assert!(neighbour.contains(&"neighbours".to_owned()), "{neighbour:?}");
}

#[test]
fn nothing_is_lost_that_was_not_said_to_go() {
    let directory = scratch();
    let plan = plan_of(directory.path(), "");
    let text = std::fs::read_to_string(&plan).unwrap();
    let device = directory.path().join("device");
    let refused = |change: &dyn Fn(&str) -> String, told: &[&str]| {
        std::fs::write(&device, vec![7; 16 << 20]).unwrap();
        std::fs::write(&plan, change(&text)).unwrap();
        let out = directory.path().join("out");
        let output = lab(&["run", path(&plan), "--out", path(&out)]);
        assert!(!output.status.success());
        names(&String::from_utf8_lossy(&output.stderr), told);
        assert!(std::fs::read(&device).unwrap() == vec![7; 16 << 20], "{told:?}");
        std::fs::remove_dir_all(out).ok();
    };
    refused(&|text| text.replace("overwrite = true", ""), &["overwrite = true"]);
    // Jobs that do not fit are found before anything is filled.
    refused(&|text| text.to_owned() + "bs = 1000\n", &["bs 1000 is not a multiple of 512"]);
    refused(&|text| text.to_owned() + "offset = \"64MiB\"\n", &["reach beyond"]);
    refused(
        &|text| text.replace("overwrite = true", "overwrite = true\nsize = \"8MiB\"") + "size = \"9MiB\"\n",
        &["beyond the subject's size"],
    );
    // Files of others in a directory, and what links name.
    let files = directory.path().join("files");
    std::fs::create_dir(&files).unwrap();
    let in_files = |text: &str| {
        text.replace(
            &format!("raw = \"{}\"", path(&device)),
            &format!("directory = \"{}\"\nsize = \"4MiB\"", path(&files)),
        )
        .replace("overwrite = true", "")
    };
    std::fs::write(files.join("client-1"), "precious").unwrap();
    refused(&in_files, &["client-1", "overwrite = true"]);
    assert_eq!(std::fs::read(files.join("client-1")).unwrap(), b"precious");
    std::fs::remove_file(files.join("client-1")).unwrap();
    std::os::unix::fs::symlink(&device, files.join("client-1")).unwrap();
    refused(&|text| in_files(text) + "\n", &["client-1"]);
    // What is no multiple of what is written at once is filled to its end, and nothing behind it is touched.
    std::fs::write(&device, vec![7; 16 << 20]).unwrap();
    let odd = text
        .replace("overwrite = true", "overwrite = true\nsize = \"1500KiB\"")
        .replace("randrw", "randread");
    std::fs::write(&plan, odd).unwrap();
    worked(&lab(&["run", path(&plan), "--out", path(&directory.path().join("odd"))]));
    let held = std::fs::read(&device).unwrap();
    let (filled, rest) = held.split_at(1500 << 10);
    assert!(filled.chunks(512).all(|sector| sector != [7; 512]) && rest.iter().all(|byte| *byte == 7));
}

/// A run of which something was measured already.
fn under_way(plan: &Path, out: &Path) -> Child {
    let mut command = command(&["lab", "run", path(plan), "--out", path(out)]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let has_a_sample = || {
        let outcome: Value = serde_json::from_slice(&std::fs::read(out.join("run.json")).ok()?).ok()?;
        Some(!outcome["samples"].as_array()?.is_empty())
    };
    wait_until("a sample is measured", || has_a_sample() == Some(true));
    child
}

/// The processes that make load for that one.
fn agents_of(pid: u32) -> Vec<i32> {
    let is_one = |process: &Process| {
        process.cmdline().is_ok_and(|words| words.last().is_some_and(|word| word == "agent"))
    };
    let all: Vec<Process> = all_processes().unwrap().flatten().filter(is_one).collect();
    let is_of = |agent: &&Process| {
        let parent = parent_of(agent.pid.cast_unsigned());
        parent == Some(pid) || parent.and_then(parent_of) == Some(pid)
    };
    all.iter().filter(is_of).map(|agent| agent.pid).collect()
}

#[test]
fn however_a_run_is_stopped_no_agent_stays_and_what_came_is_kept() {
    let directory = scratch();
    let plan = plan_of(directory.path(), "");
    let stop = directory.path().join("stopped");
    let text = std::fs::read_to_string(&plan).unwrap().replace("rounds = 1", "rounds = 100");
    let text =
        text.replace("overwrite = true", &format!("overwrite = true\nstop = \"touch {}\"", path(&stop)));
    std::fs::write(&plan, text).unwrap();
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL] {
        let out = directory.path().join(signal.as_str());
        let run = under_way(&plan, &out);
        let pid = run.id();
        let mut agents = Vec::new();
        wait_until("an agent works", || {
            agents = agents_of(pid);
            !agents.is_empty()
        });
        kill(Pid::from_raw(pid.cast_signed()), signal).unwrap();
        let output = run.wait_with_output().unwrap();
        wait_until("all agents have ended", || !agents.iter().any(|pid| runs(*pid)));
        let told = worked(&lab(&["report", path(&out)]));
        names(&told, &["NOT TO BE TRUSTED", "cut-short"]);
        if signal == Signal::SIGKILL {
            continue;
        }
        assert!(!output.status.success());
        names(&String::from_utf8_lossy(&output.stderr), &["what was measured is kept"]);
        assert!(stop.exists() && !out.join("scratch").exists());
        std::fs::remove_file(&stop).unwrap();
    }
}

#[test]
fn two_agents_in_networks_of_their_own_work_together_and_a_run_does_not_outlive_one() {
    const TEST: &str = "agents in network namespaces";
    if !is_root(TEST, "networks of their own") || !installed(TEST, &["unshare"]) {
        return;
    }
    let directory = scratch();
    let plan = plan_of(directory.path(), "");
    let agent = |name: &str| {
        let program = env!("CARGO_BIN_EXE_millpond");
        format!("[[agent]]\nname = \"{name}\"\ncommand = \"unshare --net {program} lab agent\"\n")
    };
    let text = std::fs::read_to_string(&plan).unwrap().replace("rounds = 1", "rounds = 100");
    // Two that write to one file would need to be let.
    let text = text.replace("randrw", "randread").replace("iodepth = 4", "iodepth = 4\nclients = 2");
    std::fs::write(&plan, text + &agent("left") + &agent("right")).unwrap();
    let out = directory.path().join("out");
    let run = under_way(&plan, &out);
    let mut agents = Vec::new();
    wait_until("both agents work", || {
        agents = agents_of(run.id());
        agents.len() == 2
    });
    let at = Instant::now();
    kill(Pid::from_raw(agents[1]), Signal::SIGKILL).unwrap();
    let output = run.wait_with_output().unwrap();
    assert!(at.elapsed() < Duration::from_secs(10), "{:?}", at.elapsed());
    assert!(!output.status.success());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("is gone") && (told.contains("on left") || told.contains("on right")), "{told}");
    let outcome = kept(&out);
    let sample = &outcome["samples"][0];
    assert_eq!(sample["agents"].as_array().unwrap().len(), 2);
    assert!(sample["cpu"]["client"]["us_per_operation"].as_f64().unwrap() > 0.0, "{}", sample["cpu"]);
    names(&worked(&lab(&["report", path(&out)])), &["cut-short", "is gone"]);
}

#[test]
fn a_challenge_is_run_by_its_name() {
    let directory = scratch();
    let out = directory.path().join("out");
    names(&worked(&lab(&["list"])), &["10k", "16-clients", "failover", "layers", "one-machine"]);
    let set = ["rounds=1", "runtime=1", "ramp_time=0", "size=32MiB", "osd_size=512MiB"];
    let mut arguments = vec!["run", "10k", "--out", path(&out)];
    arguments.extend(set.iter().flat_map(|pair| ["--set", pair]));
    let output = lab(&arguments);
    let told = String::from_utf8_lossy(&output.stdout);
    // A machine that others use too may not reach the goal: then that is said.
    names(&told, &["read IOPS", "write IOPS", "nodes CPU µs/op"]);
    assert_eq!(output.status.success(), !told.contains("MISSED"), "{told}");
    assert_eq!(kept(&out)["samples"].as_array().unwrap().len(), 1);
    assert!(!out.join("scratch").exists());
}

#[test]
fn a_job_file_of_fio_runs_as_it_is() {
    if !installed("a job file of fio", &["fio"]) {
        return;
    }
    let directory = scratch();
    let device = device(directory.path(), "device", 16);
    let job = directory.path().join("both.fio");
    let text = "[global]\nioengine=psync\nsize=16m\ntime_based=1\nruntime=1\nbs=4k\n";
    std::fs::write(
        &job,
        format!("{text}filename={}\n[one]\nrw=randwrite\n[two]\nrw=randread\n", path(&device)),
    )
    .unwrap();
    let out = directory.path().join("out");
    let told = worked(&lab(&["fio", path(&job), "--rounds", "2", "--out", path(&out)]));
    names(&told, &["one", "two (2)", "IOPS", "p99.9 µs"]);
    assert_eq!(kept(&out)["samples"].as_array().unwrap().len(), 4);
    assert_eq!(std::fs::read(out.join("job.fio")).unwrap(), std::fs::read(&job).unwrap());
    std::fs::write(&job, "[one]\nrw=teleport\n").unwrap();
    let refused = lab(&["fio", path(&job), "--out", path(&directory.path().join("other"))]);
    assert!(!refused.status.success());
    names(&String::from_utf8_lossy(&refused.stderr), &["teleport"]);
}

#[test]
fn agents_over_tcp_are_for_who_has_their_key_and_a_command_is_a_job() {
    let directory = scratch();
    let key = directory.path().join("lab.key");
    let mut listening = command(&["lab", "agent", "--listen", "127.0.0.1:0", "--key", path(&key)])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut words = BufReader::new(listening.stderr.take().unwrap());
    let mut line = String::new();
    words.read_line(&mut line).unwrap();
    let address = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")).unwrap();
    let plan = plan_of(directory.path(), "");
    let text = std::fs::read_to_string(&plan).unwrap().replace("iodepth = 4", "iodepth = 4\nclients = 2");
    let text = text.replace("randrw", "randread")
        + "[[job]]\nname = \"listing\"\nrun = \"true {dir}\"\nsubjects = [\"device\"]\n";
    let agent = |key: &Path| {
        let address = address.trim_end_matches(',');
        format!("[[agent]]\nname = \"there\"\ntcp = \"{address}\"\nkey = \"{}\"\n", path(key))
    };
    std::fs::write(&plan, text.clone() + &agent(&key)).unwrap();
    let out = directory.path().join("out");
    names(&worked(&lab(&["run", path(&plan), "--out", path(&out)])), &["listing", "IOPS"]);
    let outcome = kept(&out);
    let samples = outcome["samples"].as_array().unwrap();
    assert_eq!(samples[0]["agents"][1]["name"], "client 2 on there");
    // A run of a program takes longer than any look at memory.
    assert!(samples[1]["read"]["latency"]["mean_us"].as_f64().unwrap() > 100.0, "{}", samples[1]);
    // Another key, as another listener makes it.
    let other = directory.path().join("other.key");
    let mut elsewhere =
        command(&["lab", "agent", "--listen", "127.0.0.1:0", "--key", path(&other)]).spawn().unwrap();
    wait_until("there is another key", || other.exists());
    elsewhere.kill().unwrap();
    elsewhere.wait().unwrap();
    std::fs::write(&plan, text + &agent(&other)).unwrap();
    let refused = lab(&["run", path(&plan), "--out", path(&directory.path().join("refused"))]);
    assert!(!refused.status.success());
    names(
        &String::from_utf8_lossy(&refused.stderr),
        &["on there is gone", "is somebody else listening there?"],
    );
    listening.kill().unwrap();
    listening.wait().unwrap();
}
