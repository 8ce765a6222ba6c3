//! Plans are run with agents that are played by a script: they say what a test has them say, the truth or not, in no time.

use super::*;
use crate::agent::{Done, Said, Second as AgentSecond};
use crate::archive::CyclesPerOperation;
use crate::engine::cpu::Role;
use crate::engine::histogram::{Buckets, Latency};
use crate::monitor::CycleCount;
use std::cell::Cell;

/// The directory of a test, and what its agents say.
struct Stage {
    directory: tempfile::TempDir,
    script: String,
    served: Box<dyn Fn(u64) -> Option<Counted>>,
    asked: Cell<u64>,
    condition: Condition,
    /// What is told as a subject's nodes.
    nodes: Vec<u32>,
}

impl Host for Stage {
    fn agent(&self) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &self.script]);
        command
    }

    fn directory_of(&self, _: &Subject) -> PathBuf {
        self.directory.path().to_owned()
    }

    fn processes(&self, _: &Subject) -> anyhow::Result<Vec<Watched>> {
        Ok(self.nodes.iter().map(|pid| Watched { label: "node".to_owned(), pid: *pid }).collect())
    }

    fn condition(&self, _: &Subject) -> anyhow::Result<Condition> {
        Ok(self.condition)
    }

    fn served_delay(&self, _: &Subject) -> Duration {
        Duration::ZERO
    }

    fn served(&self, _: &Subject, _: u32) -> anyhow::Result<Option<Counted>> {
        let nth = self.asked.get();
        self.asked.set(nth + 1);
        Ok((self.served)(nth))
    }
}

/// So many reads of each of three seconds, each of which took so long.
fn seconds(iops: u64, latency_us: u64) -> Vec<AgentSecond> {
    let second = |at: u32| {
        let mut latency = Latency::default();
        (0..iops).for_each(|_| latency.record(latency_us * 1000));
        let reads = Buckets::from(&latency);
        AgentSecond {
            at_s: Some(f64::from(at)),
            seconds: 1.0,
            iops: iops as f64,
            reads,
            ..Default::default()
        }
    };
    (1..=3).map(second).collect()
}

fn done(iops: u64) -> Done {
    Done {
        seconds: 3.0,
        read_bytes: 3 * iops * 4096,
        written_bytes: 0,
        cpu_us: None,
        errors: 0,
        first_error: None,
        stopped_early: false,
        overdue: 0,
        read_contents: Default::default(),
        write_contents: Default::default(),
    }
}

/// A script that says it is ready, waits for the start, and then says all of it.
fn says(clock_ahead_s: i64, said: &[Said]) -> String {
    let lines: Vec<String> = said.iter().map(|said| serde_json::to_string(said).unwrap()).collect();
    let ready = r#"{"ready":{"bytes":1048576,"alignment_bytes":512,"pid":1,"version":"0","is_debug":false}}"#;
    format!(
        "read order
         echo '{ready}'
         now() {{ echo $(($(date +%s%N) + {clock_ahead_s} * 1000000000)); }}
         while read wish; do
             case $wish in
             *clock*) echo '{{\"clock\":'$(now)'}}' ;;
             *start*) break ;;
             *) exit ;;
             esac
         done
         echo '{{\"opened\":{{\"unix_ns\":'$(now)'}}}}'
         cat <<'END'
{}
END
",
        lines.join("\n")
    )
}

fn stage(script: String) -> Stage {
    let directory = tempfile::tempdir().unwrap();
    let (served, asked) = (Box::new(|_| None), Cell::new(0));
    Stage { directory, script, served, asked, condition: Condition::default(), nodes: Vec::new() }
}

const PLAN: &str = r#"
name = "played"
rounds = 2
order = "turns"
ramp_time = 0
runtime = 3

[[subject]]
name = "one"
raw = "/one"
prefill = false

[[subject]]
name = "two"
raw = "/two"
prefill = false

[[job]]
rw = "randread"
iodepth = 4
"#;

/// What comes of a plan, and of reading it again from where it was kept.
fn played(stage: &Stage, plan: &str) -> anyhow::Result<Outcome> {
    let stopping = Arc::new(AtomicBool::new(false));
    let options = Options { command: "test".to_owned(), stopping: &stopping };
    let path = stage.directory.path().join("kept");
    let mut archive = Archive::create(&path, "plan.toml", plan)?;
    let came = run(&Plan::parse(plan)?, stage, &options, &mut archive, &mut |_| {});
    if let Ok(outcome) = &came {
        let (_, read) = Archive::open(&path)?;
        let told = |outcome: &Outcome| {
            let figures = outcome.samples.iter().flat_map(|sample| {
                crate::archive::FIGURES
                    .iter()
                    .map(|figure| (figure.of)(sample).map(|value| format!("{value:.6}")))
            });
            let latencies = outcome.samples.iter().flat_map(|sample| sample.seconds());
            let latencies = latencies.map(|second| second.counts).collect::<Vec<_>>();
            (
                figures.collect::<Vec<_>>(),
                latencies,
                outcome.findings.clone(),
                outcome.disappointments.clone(),
            )
        };
        assert!(told(&read) == told(outcome), "what is kept is what came");
    }
    came
}

fn truth() -> String {
    let seconds = seconds(1000, 4000).into_iter().map(Said::Second);
    says(0, &seconds.chain([Said::Done(done(1000))]).collect::<Vec<_>>())
}

fn codes(outcome: &Outcome) -> Vec<&str> {
    let mut codes: Vec<&str> = outcome.findings.iter().map(|finding| finding.code.as_str()).collect();
    // Others may use the machine of a test, and the build is as it is.
    codes.retain(|code| !["debug", "neighbours", "steal", "cpu-lines"].contains(code));
    codes.dedup();
    codes
}

#[test]
fn every_point_is_measured_on_every_subject_in_turns_and_kept() {
    let outcome = played(&stage(truth()), PLAN).unwrap();
    let turns: Vec<(u32, usize)> =
        outcome.samples.iter().map(|sample| (sample.round, sample.subject)).collect();
    assert_eq!(turns, [(1, 0), (1, 1), (2, 1), (2, 0)]);
    let sample = &outcome.samples[3];
    assert_eq!((sample.operations(), sample.iops(), sample.seconds), (3000, 1000.0, 3.0));
    assert_eq!((sample.mean_us(), sample.series.len()), (Some(4000.0), 3));
    // Three digits are kept.
    assert!(sample.quantile_us(0.99).is_some_and(|us| (us - 4000.0).abs() < 4.0));
    assert_eq!((codes(&outcome), outcome.ended_early.as_deref()), (vec![], None), "{:?}", outcome.findings);
}

#[test]
fn several_clients_are_one_load_and_the_first_subject_is_its_own_control() {
    let plan = PLAN.replace("rounds = 2", "rounds = 1\ncontrol = true") + "clients = 3\n";
    let outcome = played(&stage(truth()), &plan).unwrap();
    let turns: Vec<(usize, bool)> =
        outcome.samples.iter().map(|sample| (sample.subject, sample.is_control)).collect();
    assert_eq!(turns, [(0, false), (1, false), (0, true)]);
    let sample = &outcome.samples[0];
    assert_eq!((sample.agents.len(), sample.operations(), sample.iops()), (3, 9000, 3000.0));
    assert_eq!((sample.series.len(), sample.series[1].read_iops), (3, 3000.0));
    // On a machine that is busy they begin apart from each other.
    assert!(codes(&outcome).iter().all(|code| *code == "agents"), "{:?}", outcome.findings);
}

#[test]
fn who_says_that_operations_took_less_than_they_must_is_not_trusted() {
    let seconds = seconds(1000, 2000).into_iter().map(Said::Second);
    let outcome =
        played(&stage(says(0, &seconds.chain([Said::Done(done(1000))]).collect::<Vec<_>>())), PLAN).unwrap();
    assert_eq!(codes(&outcome), ["depth"]);
    assert!(outcome.findings.iter().any(|finding| finding.text.contains("2.0 in flight, and 4")));
}

#[test]
fn a_subject_that_counted_something_else_is_not_trusted() {
    let mut stage = stage(truth());
    let each = 3 * 1000 * 4096;
    let counted = |read_bytes, by| Some(Counted { by: vec![by], read_bytes, written_bytes: 0 });
    stage.served = Box::new(move |nth| counted(nth.div_ceil(2) * each, 1));
    assert_eq!(codes(&played(&stage, PLAN).unwrap()), [""; 0]);
    stage.served = Box::new(move |nth| counted(nth.div_ceil(2) * each / 2, 1));
    std::fs::remove_dir_all(stage.directory.path().join("kept")).unwrap();
    let outcome = played(&stage, PLAN).unwrap();
    assert_eq!(codes(&outcome), ["counts"]);
    assert!(outcome.findings[0].text.contains("clients read 12 MiB, and the subject counted 6"));
    // Who has started anew has counted from the beginning.
    stage.asked.set(0);
    stage.served = Box::new(move |nth| counted(0, nth as u32));
    std::fs::remove_dir_all(stage.directory.path().join("kept")).unwrap();
    let outcome = played(&stage, PLAN).unwrap();
    assert_eq!((codes(&outcome), outcome.samples[0].served), (vec![], None));
}

#[test]
fn an_agent_whose_clock_is_wrong_is_not_trusted() {
    let seconds = seconds(1000, 4000).into_iter().map(Said::Second);
    let script = says(7, &seconds.chain([Said::Done(done(1000))]).collect::<Vec<_>>());
    let outcome = played(&stage(script), PLAN).unwrap();
    assert_eq!(codes(&outcome), ["agents"]);
    assert!(outcome.findings.iter().any(|finding| finding.text.contains("ahead by 7.0 s")));
}

#[test]
fn data_that_nobody_has_failures_and_what_was_never_begun_are_told() {
    let counts = |looked, zeros, compressible, repeated| crate::engine::contents::Counts {
        looked,
        zeros,
        compressible,
        repeated,
    };
    let all = Done {
        errors: 2,
        first_error: Some("drive: offset 0: broken".to_owned()),
        overdue: 5,
        read_contents: counts(100, 90, 10, 0),
        write_contents: counts(100, 0, 0, 50),
        ..done(1000)
    };
    let script = says(
        0,
        &seconds(1000, 4000).into_iter().map(Said::Second).chain([Said::Done(all)]).collect::<Vec<_>>(),
    );
    let outcome = played(&stage(script), &format!("{PLAN}rate_iops = 1000\n")).unwrap();
    for code in ["errors", "rate", "empty", "compresses", "repeats"] {
        assert!(codes(&outcome).contains(&code), "{code}: {:?}", outcome.findings);
    }
    assert!(outcome.findings.iter().any(|finding| finding.text.contains("drive: offset 0: broken")));
}

#[test]
fn rates_that_fall_all_the_time_are_not_trusted() {
    let seconds: Vec<Said> = (0..10u32)
        .map(|at| {
            let second = seconds(1000 - 20 * u64::from(at), 4000).remove(0);
            Said::Second(AgentSecond { at_s: Some(f64::from(at + 1)), ..second })
        })
        .chain([Said::Done(Done { seconds: 10.0, ..done(1000) })])
        .collect();
    let outcome = played(&stage(says(0, &seconds)), PLAN).unwrap();
    assert!(codes(&outcome).contains(&"drift"), "{:?}", outcome.findings);
    assert!(outcome.findings.iter().any(|finding| finding.text.contains("fall by 19.")));
}

#[test]
fn an_agent_that_dies_ends_the_run_with_its_last_words_and_what_came_before_is_kept() {
    let stage = stage(format!("echo 'out of luck' >&2; exit 3 # {}", truth().len()));
    let error = format!("{:#}", played(&stage, PLAN).unwrap_err());
    assert!(error.contains("out of luck"), "{error}");
    let (_, kept) = Archive::open(&stage.directory.path().join("kept")).unwrap();
    assert!(kept.ended_early.unwrap().contains("out of luck") && kept.samples.is_empty());
}

#[test]
fn what_is_expected_and_does_not_come_is_told() {
    let expected = "
[[expect]]
subject = \"one\"
figure = \"iops\"
at_least = 2000
[[expect]]
subject = \"two\"
figure = \"mean_us\"
at_most = 1.5
than = \"one\"
[[expect]]
subject = \"two\"
figure = \"nodes_us\"
at_most = 1
";
    let outcome = played(&stage(truth()), &format!("{PLAN}{expected}")).unwrap();
    let [iops, nodes] = outcome.disappointments.as_slice() else { panic!("{:?}", outcome.disappointments) };
    assert!(iops.contains("IOPS of one in randread is 1000.00, and was to be 2000 at least"), "{iops}");
    assert!(nodes.contains("unavailable"), "{nodes}");
    let unknown = expected.replace("\"iops\"", "\"speed\"");
    let error = played(&stage(truth()), &format!("{PLAN}{unknown}")).unwrap_err().to_string();
    assert!(error.contains("\"speed\" is no figure") && error.contains("p99_9_us"), "{error}");
}

#[test]
fn events_happen_when_they_are_due_and_subjects_are_started_and_stopped() {
    let seconds = seconds(1000, 4000).into_iter().map(Said::Second);
    let script = says(0, &seconds.collect::<Vec<_>>())
        + &format!("sleep 0.5\necho '{}'\n", serde_json::to_string(&Said::Done(done(1000))).unwrap());
    let stage = stage(script);
    let log = stage.directory.path().join("log").display().to_string();
    let plan = PLAN.replace("rounds = 2", "rounds = 1").replace(
        "raw = \"/one\"",
        &format!("raw = \"/one\"\nstart = \"echo start >> {log}\"\nstop = \"echo stop >> {log}\""),
    ) + &format!(
        "[[event]]\nname = \"kill\"\nat = 0.1\nsubject = \"one\"\nrun = \"echo {{subject}} {{target}} >> {log}\"\n\
             [[event]]\nname = \"never\"\nat = 2.9\nrun = \"false\"\n\
             [[event]]\nname = \"fails\"\nat = 0.2\nrun = \"false\"\n"
    );
    let outcome = played(&stage, &plan).unwrap();
    assert_eq!(std::fs::read_to_string(log).unwrap(), "start\none raw:/one\nstop\n");
    let names = |sample: usize| {
        let events = outcome.samples[sample].events.iter();
        events.map(|event| (event.name.as_str(), event.failed.is_some())).collect::<Vec<_>>()
    };
    assert_eq!(names(0), [("kill", false), ("fails", true)]);
    assert_eq!(names(1), [("fails", true)]);
    assert!((0.1..0.4).contains(&outcome.samples[0].events[0].at_s));
}

#[test]
fn what_runs_before_samples_does_and_a_subject_that_lacks_a_program_is_left_out() {
    let stage = stage(truth());
    let log = stage.directory.path().join("log").display().to_string();
    let plan = PLAN
        .replace("rounds = 2", "rounds = 1")
        .replace("raw = \"/one\"", &format!("raw = \"/one\"\nbefore = \"echo {{subject}} >> {log}\""))
        .replace("raw = \"/two\"", "raw = \"/two\"\nneeds = [\"no-such-program-anywhere\"]")
        + &format!("before = \"echo {{target}} >> {log}\"\n");
    let outcome = played(&stage, &plan).unwrap();
    assert_eq!(std::fs::read_to_string(log).unwrap(), "one\nraw:/one\n");
    assert_eq!(outcome.samples.len(), 1);
    let why = outcome.subjects[1].left_out.clone().unwrap();
    assert!(why.contains("no-such-program-anywhere"), "{why}");
    let told = told_of(&outcome);
    assert!(told.contains("Left out  two: it needs no-such-program-anywhere"), "{told}");
}

#[test]
fn what_is_nearly_empty_or_served_by_a_debug_build_is_not_trusted() {
    let mut stage = stage(truth());
    stage.condition = Condition { full: Some(0.04), is_debug: true };
    let outcome = played(&stage, PLAN).unwrap();
    assert!(codes(&outcome).contains(&"empty"), "{:?}", outcome.findings);
    let told = |text: &str| outcome.findings.iter().any(|finding| finding.text.contains(text));
    assert!(told("the cluster of one is 4.0 % full only") && told("what serves two was built without"));
}

#[test]
fn published_figures_stand_beside_what_was_measured() {
    let published = "
[[published]]
by = \"somebody\"
subject = \"two\"
figure = \"iops\"
value = 4000
";
    let outcome = played(&stage(truth()), &format!("{PLAN}{published}")).unwrap();
    let told = crate::present::markdown(&outcome, &crate::present::Summary::of(&outcome));
    assert!(told.contains("| somebody | randread | IOPS | 4,000 | two | 1,000 | 0.250 |"), "{told}");
}

/// An agent that has what it is asked for, or 1000 a second: in 1 ms, and in 9 ms above 600 a second.
fn overloads() -> String {
    let answers = |iops: u64, latency_us: u64| {
        let lines = seconds(iops, latency_us).into_iter().map(Said::Second).chain([Said::Done(done(iops))]);
        says(0, &lines.collect::<Vec<_>>())
    };
    // The order says at which rate; only some are asked for, each of which has its script.
    let rates = [500, 707, 595, 649];
    let cases: Vec<String> = rates
        .iter()
        .map(|rate| {
            let latency_us = if *rate > 600 { 9000 } else { 1000 };
            format!(
                "*'\"rate_iops\":{rate},'*)\n{}\n;;",
                answers(*rate, latency_us).replacen("read order", "", 1)
            )
        })
        .collect();
    let free = answers(1000, 9000).replacen("read order", "", 1);
    format!("read order\ncase $order in\n{}\n*)\n{free}\n;;\nesac\n", cases.join("\n"))
}

#[test]
fn the_highest_rate_within_an_objective_is_looked_for() {
    let plan = PLAN.replace("rounds = 2", "rounds = 1")
        + "within = { figure = \"p99_us\", at_most = 2000 }\nsubjects = [\"one\"]\n";
    let outcome = played(&stage(overloads()), &plan).unwrap();
    let sample = &outcome.samples[0];
    let probes: Vec<(Option<f64>, bool)> =
        sample.probes.iter().map(|probe| (probe.asked_iops, probe.holds)).collect();
    let asked = |rate: f64| Some(rate);
    assert_eq!(
        probes,
        [
            (None, false),
            (asked(500.0), true),
            (asked(707.0), false),
            (asked(595.0), true),
            (asked(649.0), false),
            (asked(621.0), false),
            (asked(595.0), true)
        ]
    );
    assert_eq!((sample.asked_iops, sample.iops()), (Some(595.0), 595.0));
    assert!(
        !codes(&outcome).contains(&"objective") && !codes(&outcome).contains(&"rate"),
        "{:?}",
        outcome.findings
    );
    let plan = plan.replace("at_most = 2000", "at_most = 1");
    let outcome = played(&stage(overloads()), &plan).unwrap();
    assert!(codes(&outcome).contains(&"objective"), "{:?}", outcome.findings);
}

#[test]
fn jobs_are_told_as_so_many_times_of_the_baseline() {
    let plan = PLAN.replace("rounds = 2", "rounds = 1\nbaseline = \"randread\"")
        + "[[job]]\nname = \"other\"\nrw = \"randread\"\niodepth = 4\n";
    let outcome = played(&stage(truth()), &plan).unwrap();
    let told = crate::present::markdown(&outcome, &crate::present::Summary::of(&outcome));
    assert!(told.contains("| job, by randread | figure | one | two |"), "{told}");
    assert!(told.contains("| other | IOPS | 1.00 | 1.00 |"), "{told}");
    assert!(!told.contains("| randread | IOPS | 1.00"), "{told}");
    let error = Plan::parse(&plan.replace("baseline = \"randread\"", "baseline = \"x\"")).unwrap_err();
    assert!(error.to_string().contains("no job \"x\""), "{error}");
}

#[test]
fn who_was_started_last_is_stopped_first() {
    let stage = stage(truth());
    let log = stage.directory.path().join("log").display().to_string();
    let mut plan = PLAN.replace("rounds = 2", "rounds = 1");
    for name in ["one", "two"] {
        let path = format!("raw = \"/{name}\"");
        let lines =
            format!("{path}\nstart = \"echo start {name} >> {log}\"\nstop = \"echo stop {name} >> {log}\"");
        plan = plan.replace(&path, &lines);
    }
    played(&stage, &plan).unwrap();
    assert_eq!(std::fs::read_to_string(log).unwrap(), "start one\nstart two\nstop two\nstop one\n");
}

#[test]
fn what_the_page_cache_had_is_told() {
    let plan = PLAN.replace("raw = \"/one\"", "raw = \"/one\"\ndirect = false");
    // More than others read of devices meanwhile.
    let lines = seconds(100_000, 40).into_iter().map(Said::Second).chain([Said::Done(done(100_000))]);
    let outcome = played(&stage(says(0, &lines.collect::<Vec<_>>())), &plan).unwrap();
    assert!(codes(&outcome).contains(&"cached"), "{:?}", outcome.findings);
    assert!(!outcome.findings.iter().any(|finding| finding.code == "cached" && finding.text.contains("two")));
}

#[test]
fn the_order_of_turns_is_drawn_for_each_round_and_what_cannot_be_stopped_is_told() {
    let turns: Vec<Turn> = (0..3).map(|subject| Turn { subject, is_control: false }).collect();
    let drawn = |began: u64, round: u32| -> Vec<usize> {
        ordered(&turns, TurnOrder::Random, (began, round, 1)).iter().map(|turn| turn.subject).collect()
    };
    let mut firsts = [0; 3];
    (1..=300).for_each(|round| firsts[drawn(1_790_000_000_000, round)[0]] += 1);
    assert!(firsts.iter().all(|count| (70..130).contains(count)), "{firsts:?}");
    assert_eq!(drawn(5, 7), drawn(5, 7));
    assert!((0..20).any(|began| drawn(began, 1) != drawn(0, 1)), "another in each run");
    let plan = PLAN.replace("raw = \"/two\"", "raw = \"/two\"\nstop = \"echo stuck >&2; exit 4\"");
    let outcome = played(&stage(truth()), &plan).unwrap();
    assert!(codes(&outcome).contains(&"stop"), "{:?}", outcome.findings);
    assert!(outcome.not_stopped[0].contains("stuck"), "{:?}", outcome.not_stopped);
}

#[test]
fn a_subject_may_be_compared_with_another_than_the_first_or_with_none() {
    let plan =
        PLAN.replace("rounds = 2", "rounds = 1").replace("raw = \"/one\"", "raw = \"/one\"\nby = \"two\"");
    let plan = plan.replace("raw = \"/two\"", "raw = \"/two\"\nby = \"two\"");
    let outcome = played(&stage(truth()), &plan).unwrap();
    let told = crate::present::markdown(&outcome, &crate::present::Summary::of(&outcome));
    assert!(told.contains("| job | figure | one | by two |  | two |"), "{told}");
    assert!(told.contains("| randread | IOPS | 1,000 | 1.00 |  | 1,000 |"), "{told}");
}

/// What a report says of an outcome.
fn told_of(outcome: &Outcome) -> String {
    crate::present::terminal(outcome, &crate::present::Summary::of(outcome))
}

#[test]
fn two_of_the_same_that_differ_are_not_trusted() {
    // The first that is asked is only to say how large it is.
    let said = |iops: u64, latency_us: u64| {
        let seconds = seconds(iops, latency_us).into_iter().map(Said::Second);
        says(0, &seconds.chain([Said::Done(done(iops))]).collect::<Vec<_>>())
    };
    let plan = PLAN.replace("rounds = 2", "rounds = 6\ncontrol = true");
    let plan = plan.replace("[[subject]]\nname = \"two\"\nraw = \"/two\"\nprefill = false\n", "");
    let told = |other: String| {
        let mut stage = stage(String::new());
        let count = stage.directory.path().join("count").display().to_string();
        // In round after round the other is the second, then the first.
        stage.script = format!(
            "echo x >> {count}
             case $(($(wc -l < {count}) % 4)) in
             1|2) exec 9<<'SCRIPT'\n{}\nSCRIPT
             ;;
             *) exec 9<<'SCRIPT'\n{other}\nSCRIPT
             ;;
             esac
             . /dev/fd/9",
            said(1000, 4000).replace("END", "FIRST"),
        );
        let outcome = played(&stage, &plan).unwrap();
        let twins = outcome.samples.iter().filter(|sample| sample.is_control);
        (codes(&outcome).join(" "), twins.map(|twin| twin.iops()).collect::<Vec<_>>(), told_of(&outcome))
    };
    let (codes, _, report) = told(said(1000, 4000).replace("END", "OTHER"));
    assert_eq!(codes, "", "{report}");
    let (codes, twins, report) = told(said(900, 4444).replace("END", "OTHER"));
    assert_eq!((codes.as_str(), twins), ("control", vec![900.0; 6]), "{report}");
    assert!(
        report.contains("NOT TO BE TRUSTED") && report.contains("IOPS of the same differ by 0.900"),
        "{report}"
    );
}

#[test]
fn lines_of_cpu_time_that_tell_of_more_than_there_was_are_not_trusted() {
    let lines = seconds(1000, 4000).into_iter().map(Said::Second).collect::<Vec<_>>();
    let done = serde_json::to_string(&Said::Done(done(1000))).unwrap();
    let mut stage = stage(says(0, &lines) + &format!("sleep 0.5\necho '{done}'\n"));
    let mut busy = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let plan = PLAN.replace("rounds = 2", "rounds = 1");
    // As an account would be that takes a thread for a process of its own.
    stage.nodes = vec![busy.id(); 6];
    let outcome = played(&stage, &plan);
    busy.kill().unwrap();
    busy.wait().unwrap();
    // Where this machine is a virtual one, what the hypervisor took of it would say the same.
    let mut outcome = outcome.unwrap();
    for cpu in outcome.samples.iter_mut().filter_map(|sample| sample.cpu.as_mut()) {
        cpu.steal_seconds = Some(0.0);
    }
    outcome.findings = trust::findings(&outcome);
    let report = told_of(&outcome);
    assert!(report.contains("NOT TO BE TRUSTED"), "{report}");
    assert!(report.contains("the lines of CPU time have"), "{report}");
}

#[test]
fn what_the_machine_cannot_have_done_or_gave_to_others_is_not_trusted() {
    let mut played = played(&stage(truth()), PLAN).unwrap();
    played.samples.truncate(1);
    // A virtual machine's figures cannot be had by a test: they are put into what was kept.
    let told = |change: fn(&mut crate::archive::Sample, f64)| {
        let mut outcome = played.clone();
        let cpus = f64::from(outcome.machine.cpus.unwrap());
        change(&mut outcome.samples[0], cpus);
        outcome.findings = trust::findings(&outcome);
        (outcome.findings.iter().map(|found| found.code.clone()).collect::<Vec<_>>(), told_of(&outcome))
    };
    let few = |codes: &[String], code: &str| codes.iter().filter(|found| *found == code).count();
    let (codes, report) = told(|sample, cpus| {
        let seconds = sample.seconds;
        sample.cpu.as_mut().unwrap().steal_seconds = Some(0.03 * seconds * cpus);
    });
    assert_eq!(few(&codes, "steal"), 1, "{report}");
    assert!(report.contains("the hypervisor gave 3.0 % of the CPUs' time to others"), "{report}");
    let (codes, report) = told(|sample, cpus| {
        let seconds = sample.seconds;
        sample.cpu.as_mut().unwrap().steal_seconds = Some(0.01 * seconds * cpus);
    });
    assert_eq!(few(&codes, "steal"), 0, "{report}");
    let (codes, report) = told(|sample, _| {
        let cpu = sample.cpu.as_mut().unwrap();
        let roles = [(Role::Client, 50.0), (Role::Nodes, 39.0)];
        (cpu.machine_us_per_operation, cpu.roles_us_per_operation) = (Some(100.0), roles.into());
    });
    assert_eq!(few(&codes, "cpu-lines"), 1, "{report}");
    assert!(report.contains("the lines of CPU time have 89.0 % of the machine's"), "{report}");
    let cycles = |count: u64| {
        let mut outcome = played.clone();
        let count = CycleCount { cycles: count, is_estimated: false };
        // 3,000 operations, 100 us of CPU time each.
        outcome.samples[0].cycles = Some(CyclesPerOperation::new(count, 3000, Some(300_000.0)));
        outcome.findings = trust::findings(&outcome);
        (outcome.findings.iter().any(|found| found.code == "cycles"), told_of(&outcome))
    };
    // 2,500 MHz.
    assert!(!cycles(750_000_000).0);
    let (is_found, report) = cycles(75_000_000_000);
    assert!(is_found && report.contains("a clock of 250000 MHz, which no CPU has"), "{report}");
}
