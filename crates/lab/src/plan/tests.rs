use super::*;

const PLAN: &str = r#"
name = "small"
rounds = 3
runtime = "2.5s"

[[subject]]
name = "device"
raw = "/dev/loop7"
overwrite = true

[[subject]]
name = "disk"
volume = "bench-{client}"
overwrite = true
size = "1GiB"

[[job]]
rw = ["randread", "randwrite"]
iodepth = [1, 64]

[[job]]
name = "large"
rw = "rw"
bs = "1MiB"
rwmixread = 75
numjobs = 4
rate_iops = 100
ramp_time = 0
subjects = ["disk"]

[[event]]
name = "kill"
at = 1
run = "true {subject}"
job = "large"

[[expect]]
subject = "disk"
figure = "iops"
at_least = 0.5
than = "device"
"#;

fn refused(text: &str) -> String {
    Plan::parse(text).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn a_plan_is_every_combination_of_its_jobs_values() {
    let plan = Plan::parse(PLAN).unwrap();
    let points = plan.points().unwrap();
    let names: Vec<&str> = points.iter().map(|point| point.name.as_str()).collect();
    assert_eq!(
        names,
        ["randread iodepth=1", "randread iodepth=64", "randwrite iodepth=1", "randwrite iodepth=64", "large"]
    );
    let large = &points[4];
    assert_eq!((large.clients, large.job.rate_iops, large.job.mix_read_percent), (4, Some(100), 75));
    assert_eq!((large.job.ramp, large.job.block), (Duration::ZERO, ByteSize(1 << 20)));
    assert_eq!((large.is_for(&plan.subjects[0]), large.is_for(&plan.subjects[1])), (false, true));
    assert_eq!((points[1].depth(), points[1].job.runtime), (64, Some(Duration::from_millis(2500))));
    assert_eq!(plan.subjects[1].target(3), Some(TargetName::Volume("bench-3".into())));
    // Three rounds of four points of 3.5 s on two subjects, and one of 2.5 s on one.
    assert_eq!(plan.least_duration(), Duration::from_millis(3 * (8 * 3500 + 2500)));
}

#[test]
fn what_is_no_key_or_no_value_is_refused_by_name_and_line() {
    let check = |from: &str, to: &str, told: &str| {
        let line = PLAN[..PLAN.find(from).unwrap()].lines().count() + 1;
        let error = refused(&PLAN.replace(from, to));
        assert!(error.contains(&format!("line {line},")) && error.contains(told), "{line}: {error}");
    };
    check("rwmixread = 75", "rwmix = 75", "unknown field `rwmix`");
    check("overwrite = true", "overwrites = true", "unknown field `overwrites`");
    check("bs = \"1MiB\"", "bs = \"1XB\"", "1XB");
    check("iodepth = [1, 64]", "iodepth = []", "empty");
    check("rw = \"rw\"", "rw = \"trim\"", "randwrite");
    assert!(refused("name = ").contains("line 1"));
    assert!(refused(&PLAN.replace("at = 1", "")).contains("missing field `at`"));
}

#[test]
fn what_does_not_go_together_is_refused_with_what_to_write() {
    let check = |from: &str, to: &str, told: &str| {
        assert!(PLAN.contains(from), "{from}");
        let error = refused(&PLAN.replace(from, to));
        assert!(error.contains(told), "{error}");
    };
    check("raw = \"/dev/loop7\"\noverwrite = true", "raw = \"/dev/loop7\"", "overwrite = true");
    check("volume = \"bench-{client}\"\noverwrite = true", "volume = \"bench-{client}\"", "overwrite = true");
    check("volume = \"bench-{client}\"", "raw = \"/dev/x\"", "one client writes");
    check(
        "rate_iops = 100",
        "rate_iops = 100\noffset = \"1KiB\"\nsize = \"9EiB\"",
        "beyond the subject's size",
    );
    check("at = 1", "at = 3", "never comes");
    check("at_least = 0.5", "at_least = nan", "no number");
    check("subjects = [\"disk\"]", "subjects = []", "no subjects");
    check("rounds = 3", "rounds = 0", "rounds = 0");
    check("name = \"small\"", "name = \"a/b\"", "a/b");
    check("name = \"disk\"", "name = \"device\"", "two subjects");
    check("raw = \"/dev/loop7\"", "", "exactly one of");
    check("raw = \"/dev/loop7\"", "raw = \"x\"\nnbd = \"nbd://h/x\"", "exactly one of");
    check("raw = \"/dev/loop7\"", "nbd = \"host\"", "nbd://host/export");
    check("raw = \"/dev/loop7\"", "directory = \"/mnt\"", "size = ");
    check("raw = \"/dev/loop7\"", "rbd = \"pool/image\"", "engine = \"fio\"");
    check("volume = \"bench-{client}\"", "volume = \"x\"\nengine = \"fio\"", "NBD export");
    check("name = \"large\"", "name = \"large one\"", "hyphens");
    check("name = \"large\"\nrw = \"rw\"", "rw = \"randread\"\niodepth = [1, 2]", "two jobs are called");
    check("numjobs = 4", "numjobs = 0", "clients = 0");
    check("job = \"large\"", "job = \"huge\"", "no job \"huge\"");
    check("subjects = [\"disk\"]", "subjects = [\"disc\"]", "no subject \"disc\"");
    check("than = \"device\"", "than = \"devil\"", "no subject \"devil\"");
    check("at_least = 0.5", "", "at_least or at_most");
}

const COMMANDS: &str = r#"
name = "commands"

[[agent]]
name = "near"
tcp = "host:7070"
key = "lab.key"

[[agent]]
name = "far"
command = "reach far"

[[subject]]
name = "cluster"
system = "three nodes"

[[subject]]
name = "disk"
volume = "disk"
agents = ["far"]
overwrite = true
age = "64MiB"

[[job]]
name = "status"
run = "status {dir}"
subjects = ["cluster"]

[[job]]
rw = "randread"
subjects = ["disk"]
within = { figure = "p99_us", at_most = 1000 }

[[published]]
by = "somebody"
job = "status"
figure = "mean_us"
value = 5e6
"#;

#[test]
fn commands_objectives_and_agents_of_a_subject_are_read() {
    let plan = Plan::parse(COMMANDS).unwrap();
    let points = plan.points().unwrap();
    assert_eq!(points[0].run.as_deref(), Some("status {dir}"));
    assert_eq!(points[1].within, Some(Objective { figure: "p99_us".to_owned(), at_most: 1000.0 }));
    let names = |subject: usize| {
        let agents = plan.agents_of(&plan.subjects[subject]);
        agents.iter().map(|agent| agent.name.clone()).collect::<Vec<_>>()
    };
    assert_eq!((names(0), names(1)), (vec!["near".to_owned()], vec!["far".to_owned()]));
    assert!(!plan.subjects[0].is_filled() && plan.subjects[1].described().contains("aged by 64MiB"));
    let start = format!("{:?}", plan.agents[0].start());
    assert!(start.ends_with(r#""lab" "reach" "host:7070" "--key" "lab.key""#), "{start}");
}

#[test]
fn what_commands_objectives_and_agents_cannot_be_is_refused() {
    let check = |from: &str, to: &str, told: &str| {
        assert!(COMMANDS.contains(from), "{from}");
        let error = refused(&COMMANDS.replace(from, to));
        assert!(error.contains(told), "{error}");
    };
    check("run = \"status {dir}\"", "run = \"status\"\nrw = \"read\"", "exactly one of rw and run");
    check("name = \"status\"\n", "", "needs a name");
    check("run = \"status {dir}\"", "rw = \"read\"", "a system is for jobs that are commands");
    check("system = \"three nodes\"", "system = \"x\"\nprefill = true", "leave out prefill");
    check("at_most = 1000", "at_most = -1", "cannot be");
    check("rw = \"randread\"", "rw = \"randread\"\nrate_iops = 5", "leave out either");
    check("agents = [\"far\"]", "agents = [\"farther\"]", "no agent \"farther\"");
    check("key = \"lab.key\"", "", "go together");
    check("command = \"reach far\"", "command = \"x\"\nssh = \"h\"", "exactly one of ssh, tcp and command");
    check("age = \"64MiB\"", "age = \"64MiB\"\nprefill = false", "is filled first");
    check("volume = \"disk\"", "volume = \"disk\"\ndirect = false", "direct is for");
    check("value = 5e6", "value = 0", "no number above 0");
    check("job = \"status\"", "job = \"stati\"", "no job \"stati\"");
}

#[test]
fn a_program_that_is_not_there_is_missing() {
    let subject = |needs: &[&str]| Subject {
        needs: needs.iter().map(|name| (*name).to_owned()).collect(),
        ..Subject::default()
    };
    assert_eq!(subject(&["sh", "no-such-program-anywhere"]).missing(), Some("no-such-program-anywhere"));
    assert_eq!(subject(&["sh"]).missing(), None);
    let is_root = nix::unistd::Uid::effective().is_root();
    assert_eq!(subject(&["root"]).missing().is_none(), is_root);
}
