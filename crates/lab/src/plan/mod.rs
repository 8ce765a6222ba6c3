//! A plan: what is measured, as data. `docs/lab.md` tells its keys; a key that is none is refused with its line.
//!
//! A plan names subjects and jobs. A job that gives several values for a key is one *point* for each combination of them. Every
//! point is measured on every subject in every round, in turns, so that what drifts meets all alike.

mod agent_host;
mod many;
mod objective;
mod parameters;
mod subject;

pub use agent_host::AgentHost;
pub use many::Many;
pub use objective::Objective;
pub use parameters::filled_in;
pub use subject::{Engine, Place, Subject};

use crate::engine::plan::{Job, Mode, PlanError, TargetName};
use base::units::ByteSize;
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// The most points of a plan, and the most subjects: what a table can show.
const POINTS_MAX: usize = 500;
const SUBJECTS_MAX: usize = 16;
const ROUNDS_MAX: u32 = 1000;
/// The most processes that make the load of one sample.
const CLIENTS_MAX: u32 = 256;
/// A name is part of files' names and of tables.
const NAME_CHARACTERS_MAX: usize = 40;

/// Why a plan cannot be run.
#[derive(thiserror::Error, Debug, PartialEq, Eq)]
pub enum PlanFileError {
    /// It is no TOML, has a key that is none, or a value that is none of its key. The text names the line.
    #[error("{0}")]
    Text(String),
    /// What it says does not go together.
    #[error("{0}")]
    Sense(String),
}

/// All of a plan.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Plan {
    /// What it is called: letters, digits, hyphens.
    pub name: String,
    /// The report's heading.
    pub title: Option<String>,
    /// What the reader should know of it.
    pub note: Option<String>,
    /// How often each point is measured on each subject.
    #[serde(default = "default_rounds")]
    pub rounds: u32,
    /// In which order subjects are measured in a round.
    #[serde(default)]
    pub order: TurnOrder,
    /// Whether the first subject is measured twice in each round, as if it were two (A/A): a method that finds a difference
    /// there would find any.
    #[serde(default)]
    pub control: bool,
    /// Whether it is looked 20 times a second what threads of clients and nodes do, which costs a core a few percent.
    #[serde(default)]
    pub threads: bool,
    /// The job that others are told as so many times of, if they are to be.
    pub baseline: Option<String>,
    /// How long each sample is measured, unless the job says otherwise.
    #[serde(default = "default_runtime", deserialize_with = "duration")]
    pub runtime: Duration,
    /// How long each runs before.
    #[serde(default = "default_ramp", rename = "ramp_time", deserialize_with = "duration")]
    pub ramp: Duration,
    /// The hosts of those that make the load; this one if there are none. Clients are spread over them in turns.
    #[serde(default, rename = "agent")]
    pub agents: Vec<AgentHost>,
    /// What is measured.
    #[serde(rename = "subject")]
    pub subjects: Vec<Subject>,
    /// How.
    #[serde(rename = "job")]
    pub jobs: Vec<JobPlan>,
    /// What happens meanwhile.
    #[serde(default, rename = "event")]
    pub events: Vec<Event>,
    /// What others have published of the same.
    #[serde(default)]
    pub published: Vec<Published>,
    /// What was filled in already.
    #[serde(default)]
    pub parameters: BTreeMap<String, String>,
    /// What is to come of it.
    #[serde(default, rename = "expect")]
    pub expectations: Vec<Expectation>,
}

/// Who comes first in a round finds the machine in another state than who comes last.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TurnOrder {
    /// Drawn for each round and job: whatever drifts then, a comparison claims no more than it promises.
    #[default]
    Random,
    /// Who is first in a round is last in the next.
    Turns,
}

/// Jobs, with fio's names. A key with several values makes several points.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobPlan {
    /// What it is called; by its mode if absent.
    pub name: Option<String>,
    /// Which operations; random reads if absent, which `run` wants.
    pub rw: Option<Many<Mode>>,
    /// What a shell runs instead: each run is an operation, its latency how long that takes. `{dir}`, `{subject}` and `{target}`
    /// are filled in.
    pub run: Option<String>,
    /// What is kept while as much is asked for as can be.
    pub within: Option<Objective>,
    /// What a shell runs before each sample, with the same filled in.
    pub before: Option<String>,
    /// Bytes of each.
    #[serde(default = "default_block")]
    pub bs: Many<ByteSize>,
    /// Operations that each client keeps in flight.
    #[serde(default = "default_one")]
    pub iodepth: Many<u32>,
    /// Share of reads in the mixed modes, in percent.
    #[serde(default = "default_mix")]
    pub rwmixread: Many<u8>,
    /// Processes that do this at the same time. `numjobs` to fio.
    #[serde(default = "default_one", alias = "numjobs")]
    pub clients: Many<u32>,
    /// Operations a second that each client asks for.
    pub rate_iops: Option<Many<u32>>,
    /// How long it is measured.
    #[serde(default, deserialize_with = "optional_duration")]
    pub runtime: Option<Duration>,
    /// How long it runs before.
    #[serde(default, deserialize_with = "optional_duration")]
    pub ramp_time: Option<Duration>,
    /// Where its part of the subject begins.
    pub offset: Option<Many<ByteSize>>,
    /// Bytes of that part.
    pub size: Option<Many<ByteSize>>,
    /// Whether zeros are written.
    #[serde(default)]
    pub zero_buffers: bool,
    /// Which subjects it is for; all if absent.
    pub subjects: Option<BTreeSet<String>>,
}

/// Something that happens to each sample of a job.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Event {
    /// What it is called in the report.
    pub name: String,
    /// When, from the beginning of what is measured.
    #[serde(deserialize_with = "duration")]
    pub at: Duration,
    /// What is run by a shell. `{subject}` is the subject's name, `{target}` what it is, `{dir}` its cluster's directory.
    pub run: String,
    /// In which job; in all if absent.
    pub job: Option<String>,
    /// On which subject; on all if absent.
    pub subject: Option<String>,
}

/// Something that is to be true of the figures; what is not makes the run fail.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// Of which subject.
    pub subject: String,
    /// In which point or job; in all if absent.
    pub job: Option<String>,
    /// Which figure: `iops`, `mean_us`, `p99_us` and so on, as they are named in `run.json`.
    pub figure: String,
    /// No less than this, or than this many times what `than` has.
    pub at_least: Option<f64>,
    /// No more.
    pub at_most: Option<f64>,
    /// The subject of which the figure is a multiple.
    pub than: Option<String>,
}

/// A figure that somebody has published: what is measured is told as so many times that.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Of what, and on what.
    pub by: String,
    /// In which point or job; in all if absent.
    pub job: Option<String>,
    /// On which subject it is comparable; on all if absent.
    pub subject: Option<String>,
    /// Which figure, as they are named in `run.json`.
    pub figure: String,
    /// What it was, in the figure's unit.
    pub value: f64,
}

/// One job with one value for each key.
#[derive(Clone, Debug, PartialEq)]
pub struct Point {
    /// What it is called, with the values of the keys that have several.
    pub name: String,
    /// The job's name: that of all its points.
    pub job_name: String,
    /// What each client does. Its target is the subject's, and not known here.
    pub job: Job,
    /// How many clients there are.
    pub clients: u32,
    /// Which subjects it is for; all if absent.
    pub subjects: Option<BTreeSet<String>>,
    /// What a shell runs instead of operations.
    pub run: Option<String>,
    /// What is kept while as much is asked for as can be.
    pub within: Option<Objective>,
    /// What a shell runs before each sample.
    pub before: Option<String>,
}

impl Point {
    /// Operations that all clients together keep in flight.
    #[must_use]
    pub fn depth(&self) -> u64 {
        u64::from(self.job.depth) * u64::from(self.clients)
    }

    /// Whether it stays within what is used of a subject, and its clients do not keep each other out.
    fn fits(&self, subject: &Subject, hosts: usize) -> Result<(), PlanFileError> {
        let wrong = |text: String| {
            Err(PlanFileError::Sense(format!("job {:?} on {}: {text}", self.name, subject.name)))
        };
        if let Some(ByteSize(used)) = subject.size
            && self.job.size.unwrap_or(0).checked_add(self.job.offset).is_none_or(|end| end > used)
        {
            return wrong("its offset and size reach beyond the subject's size".to_owned());
        }
        if self.run.is_none() && matches!(subject.place(), Some(Place::System(_))) {
            return wrong("a system is for jobs that are commands; limit the job by `subjects`".to_owned());
        }
        let by_fio = subject.engine == Engine::Fio;
        if by_fio && (self.run.is_some() || self.within.is_some()) {
            return wrong("fio neither runs commands nor keeps within an objective".to_owned());
        }
        let alone = matches!(subject.place(), Some(Place::Raw(_))) && !by_fio;
        if alone && self.clients as usize > hosts && self.job.mode.writes() && !subject.is_by_client() {
            return wrong(
                "one client writes to a raw device; give each one by `{client}` in its name".to_owned(),
            );
        }
        Ok(())
    }

    /// Whether it is measured on a subject.
    #[must_use]
    pub fn is_for(&self, subject: &Subject) -> bool {
        self.subjects.as_ref().is_none_or(|names| names.contains(&subject.name))
    }
}

impl Event {
    /// Whether it happens to samples of a point.
    #[must_use]
    pub fn is_of(&self, point: &Point) -> bool {
        self.job.as_ref().is_none_or(|name| *name == point.name || *name == point.job_name)
    }
}

impl Plan {
    /// Reads a plan.
    ///
    /// # Errors
    /// What is wrong, where, and what to write instead.
    pub fn parse(text: &str) -> Result<Plan, PlanFileError> {
        let plan: Plan =
            toml_edit::de::from_str(text).map_err(|error| PlanFileError::Text(error.to_string()))?;
        plan.check()?;
        Ok(plan)
    }

    fn check(&self) -> Result<(), PlanFileError> {
        let wrong = |text: String| Err(PlanFileError::Sense(text));
        check_name("name", &self.name)?;
        if self.rounds == 0 || self.rounds > ROUNDS_MAX {
            return wrong(format!("rounds = {} is outside 1 to {ROUNDS_MAX}", self.rounds));
        }
        if self.subjects.is_empty() || self.subjects.len() > SUBJECTS_MAX {
            return wrong(format!("a plan has 1 to {SUBJECTS_MAX} subjects, each under [[subject]]"));
        }
        let mut names = BTreeSet::new();
        for subject in &self.subjects {
            check_name("the name of a subject", &subject.name)?;
            if !names.insert(subject.name.as_str()) {
                return wrong(format!("two subjects are called {:?}", subject.name));
            }
            subject.check()?;
        }
        let mut hosts = BTreeSet::new();
        for agent in &self.agents {
            check_name("the name of an agent", &agent.name)?;
            if !hosts.insert(agent.name.as_str()) {
                return wrong(format!("two agents are called {:?}", agent.name));
            }
            agent.check()?;
        }
        let named = self.subjects.iter().flat_map(|subject| subject.agents.iter().flatten());
        if let Some(unknown) = named.into_iter().find(|name| !hosts.contains(name.as_str())) {
            return wrong(format!("there is no agent {unknown:?}"));
        }
        // A device of the same name is another on each host.
        let is_named = self.subjects.iter().any(|subject| subject.agents.is_some());
        let is_local =
            |subject: &&Subject| matches!(subject.place(), Some(Place::Raw(_) | Place::Directory(_)));
        if let Some(subject) =
            self.subjects.iter().filter(is_local).find(|subject| is_named && subject.agents.is_none())
        {
            return wrong(format!(
                "a subject names its agents, and {} does not; say which host it is on: agents = [] is this one",
                subject.name
            ));
        }
        let by_fio = self.subjects.iter().filter(|subject| subject.engine == Engine::Fio);
        if let Some(subject) = by_fio.into_iter().find(|subject| !self.agents_of(subject).is_empty()) {
            return wrong(format!(
                "fio runs on this host only, and {} is by fio; leave out [[agent]]",
                subject.name
            ));
        }
        let known = |name: &String| names.contains(name.as_str());
        let no_subject = |name: &str| PlanFileError::Sense(format!("there is no subject {name:?}"));
        let points = self.points()?;
        if let Some(unknown) =
            self.subjects.iter().filter_map(|subject| subject.by.as_ref()).find(|name| !known(name))
        {
            return Err(no_subject(unknown));
        }
        for job in &self.jobs {
            if let Some(unknown) = job.subjects.iter().flatten().find(|name| !known(name)) {
                return Err(no_subject(unknown));
            }
            if job.subjects.as_ref().is_some_and(BTreeSet::is_empty) {
                return wrong("a job has no subjects; leave out `subjects` for all".to_owned());
            }
        }
        for event in &self.events {
            let meant = points.iter().filter(|point| event.is_of(point));
            if let Some(point) = meant.into_iter().find(|point| point.job.runtime <= Some(event.at)) {
                let (name, at) = (&event.name, event.at.as_secs_f64());
                return wrong(format!(
                    "{name:?} at {at} s never comes: {} is measured no longer than that",
                    point.name
                ));
            }
            if let Some(unknown) = event.subject.as_ref().filter(|name| !known(name)) {
                return Err(no_subject(unknown));
            }
        }
        for published in &self.published {
            if let Some(unknown) = published.subject.as_ref().filter(|name| !known(name)) {
                return Err(no_subject(unknown));
            }
            if !(published.value.is_finite() && published.value > 0.0) {
                return wrong(format!("what was published by {:?} is no number above 0", published.by));
            }
        }
        for expectation in &self.expectations {
            let named = std::iter::once(&expectation.subject).chain(&expectation.than);
            if let Some(unknown) = named.into_iter().find(|name| !known(name)) {
                return Err(no_subject(unknown));
            }
            let bounds = || expectation.at_least.into_iter().chain(expectation.at_most);
            if bounds().any(|bound| !bound.is_finite()) {
                return wrong(format!("what is expected of {} is no number", expectation.subject));
            }
            if bounds().count() == 0 {
                return wrong(format!(
                    "what is expected of {} needs at_least or at_most",
                    expectation.subject
                ));
            }
        }
        if let Some(name) =
            self.baseline.as_ref().filter(|name| !points.iter().any(|point| point.name == **name))
        {
            return wrong(format!("there is no job {name:?}"));
        }
        let jobs = self.events.iter().filter_map(|event| event.job.as_ref());
        let jobs = jobs.chain(self.expectations.iter().filter_map(|expected| expected.job.as_ref()));
        let jobs = jobs.chain(self.published.iter().filter_map(|published| published.job.as_ref()));
        for name in jobs {
            if !points.iter().any(|point| point.name == *name || point.job_name == *name) {
                return wrong(format!("there is no job {name:?}"));
            }
        }
        for point in &points {
            for subject in self.subjects.iter().filter(|subject| point.is_for(subject)) {
                point.fits(subject, self.agents_of(subject).len().max(1))?;
                let writes = point.run.is_none() && (point.job.mode.writes() || subject.is_filled());
                if writes && !matches!(subject.place(), Some(Place::Directory(_))) && !subject.overwrite {
                    return wrong(format!(
                        "{} would overwrite {}; say `overwrite = true` in that subject if what it holds may go{}",
                        point.name,
                        subject.name,
                        if point.job.mode.writes() { "" } else { ", or `prefill = false`" },
                    ));
                }
            }
        }
        Ok(())
    }

    /// Every combination of its jobs' values, in their order.
    ///
    /// # Errors
    /// A job cannot be run, or there are too many.
    pub fn points(&self) -> Result<Vec<Point>, PlanFileError> {
        let mut points: Vec<Point> = Vec::new();
        for job in &self.jobs {
            if job.count().is_none_or(|count| count > POINTS_MAX) {
                return Err(PlanFileError::Sense(format!(
                    "a job of so many values is too much; {POINTS_MAX} points are the most"
                )));
            }
            points.extend(job.points(self)?);
            if points.len() > POINTS_MAX {
                let count = points.len();
                return Err(PlanFileError::Sense(format!(
                    "{count} points are too many; {POINTS_MAX} are the most"
                )));
            }
        }
        if points.is_empty() {
            return Err(PlanFileError::Sense("a plan has at least one job, under [[job]]".to_owned()));
        }
        let mut names = BTreeSet::new();
        match points.iter().find(|point| !names.insert(point.name.as_str())) {
            Some(twice) => {
                Err(PlanFileError::Sense(format!("two jobs are called {:?}; name them", twice.name)))
            }
            None => Ok(points),
        }
    }

    /// Those that make a subject's load, this host if there are none: the ones it names, or else those that none names.
    #[must_use]
    pub fn agents_of(&self, subject: &Subject) -> Vec<&AgentHost> {
        let is_named =
            |name: &String| self.subjects.iter().flat_map(|one| &one.agents).flatten().any(|one| one == name);
        let is_meant = |agent: &&AgentHost| match &subject.agents {
            Some(names) => names.contains(&agent.name),
            None => !is_named(&agent.name),
        };
        self.agents.iter().filter(is_meant).collect()
    }

    /// How long all of it takes at least: what is measured, and what runs before.
    #[must_use]
    pub fn least_duration(&self) -> Duration {
        let points = self.points().unwrap_or_default();
        let twin = usize::from(self.control);
        let each = points.iter().map(|point| {
            let subjects = self.subjects.iter().filter(|subject| point.is_for(subject)).count() + twin;
            let probes = if point.within.is_some() { Objective::PROBES_MIN } else { 1 };
            (point.job.ramp + point.job.runtime.unwrap_or_default()) * subjects as u32 * probes
        });
        each.sum::<Duration>() * self.rounds
    }
}

impl JobPlan {
    /// How many points it makes, if that is a number.
    fn count(&self) -> Option<usize> {
        let sizes = [&self.offset, &self.size].map(|many| many.as_ref().map_or(1, |many| many.0.len()));
        let rates = self.rate_iops.as_ref().map_or(1, |many| many.0.len());
        let modes = self.rw.as_ref().map_or(1, |many| many.0.len());
        let first = [modes, self.bs.0.len(), self.rwmixread.0.len(), self.iodepth.0.len()];
        let all = first.into_iter().chain(sizes).chain([self.clients.0.len(), rates]);
        all.into_iter().try_fold(1usize, usize::checked_mul)
    }

    fn points(&self, plan: &Plan) -> Result<Vec<Point>, PlanFileError> {
        let modes = match (&self.rw, &self.run) {
            (Some(modes), None) => modes.clone(),
            (None, Some(_)) => Many(vec![Mode::RandomRead]),
            _ => {
                let name = self.name.as_deref().unwrap_or("without a name");
                return Err(PlanFileError::Sense(format!("job {name:?}: give exactly one of rw and run")));
            }
        };
        let first = |mode: Mode, name: String| {
            let mut job = Job::new(TargetName::Raw("-".into()), mode);
            job.zero_buffers = self.zero_buffers;
            job.runtime = Some(self.runtime.unwrap_or(plan.runtime));
            job.ramp = self.ramp_time.unwrap_or(plan.ramp);
            Point {
                name: name.clone(),
                job_name: name,
                job,
                clients: 1,
                subjects: self.subjects.clone(),
                run: self.run.clone(),
                within: self.within.clone(),
                before: self.before.clone(),
            }
        };
        let points = match &self.name {
            Some(name) => {
                check_name("the name of a job", name)?;
                let points = vec![first(Mode::RandomRead, name.clone())];
                spread(points, Some(&modes), "", |point, mode| point.job.mode = mode)
            }
            // Without a name each mode is a job of that name.
            None if self.run.is_some() => {
                return Err(PlanFileError::Sense("a job that is a command needs a name".to_owned()));
            }
            None => modes.0.iter().map(|mode| first(*mode, mode.to_string())).collect(),
        };
        let points = spread(points, Some(&self.bs), "bs=", |point, block| point.job.block = block);
        let points = spread(points, Some(&self.rwmixread), "rwmixread=", |point, mix| {
            point.job.mix_read_percent = mix;
        });
        let points = spread(points, Some(&self.iodepth), "iodepth=", |point, depth| point.job.depth = depth);
        let points =
            spread(points, Some(&self.clients), "clients=", |point, clients| point.clients = clients);
        let points = spread(points, self.rate_iops.as_ref(), "rate_iops=", |point, rate| {
            point.job.rate_iops = Some(rate);
        });
        let points = spread(points, self.offset.as_ref(), "offset=", |point, offset| {
            point.job.offset = offset.0;
        });
        let points = spread(points, self.size.as_ref(), "size=", |point, size| point.job.size = Some(size.0));
        points.into_iter().map(checked).collect()
    }
}

/// Each point with each of a key's values, which are in its name if there are several.
fn spread<T: Copy + std::fmt::Display>(
    points: Vec<Point>,
    many: Option<&Many<T>>,
    key: &str,
    set: impl Fn(&mut Point, T),
) -> Vec<Point> {
    let Some(Many(values)) = many else { return points };
    let with = |point: &Point, value: T| {
        let mut point = point.clone();
        if values.len() > 1 {
            point.name += &format!(" {key}{value}");
        }
        set(&mut point, value);
        point
    };
    points.iter().flat_map(|point| values.iter().map(|value| with(point, *value))).collect()
}

fn checked(point: Point) -> Result<Point, PlanFileError> {
    let wrong = |text: String| Err(PlanFileError::Sense(format!("job {:?}: {text}", point.name)));
    if point.clients == 0 || point.clients > CLIENTS_MAX {
        return wrong(format!("clients = {} is outside 1 to {CLIENTS_MAX}", point.clients));
    }
    if let Some(objective) = &point.within {
        if point.job.rate_iops.is_some() {
            return wrong("within looks for a rate, and rate_iops is one; leave out either".to_owned());
        }
        if let Err(text) = objective.check() {
            return wrong(text);
        }
    }
    match point.job.validate() {
        Ok(()) => Ok(point),
        Err(PlanError::Endless) => wrong("runtime must be longer than 0".to_owned()),
        // Keys have the names of options.
        Err(error) => wrong(error.to_string().replace("--", "").replace("rate-iops", "rate_iops")),
    }
}

fn check_name(what: &str, name: &str) -> Result<(), PlanFileError> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name.is_empty() || name.chars().count() > NAME_CHARACTERS_MAX || !name.chars().all(is_plain) {
        return Err(PlanFileError::Sense(format!(
            "{what} is {name:?}; take 1 to {NAME_CHARACTERS_MAX} letters, digits, hyphens, dots, underscores"
        )));
    }
    Ok(())
}

fn default_rounds() -> u32 {
    6
}

fn default_runtime() -> Duration {
    Duration::from_secs(10)
}

fn default_ramp() -> Duration {
    Duration::from_secs(1)
}

fn default_block() -> Many<ByteSize> {
    Many(vec![ByteSize(4096)])
}

fn default_one() -> Many<u32> {
    Many(vec![1])
}

fn default_mix() -> Many<u8> {
    Many(vec![50])
}

/// Reads `10`, `"10s"` or `"1.5"`: seconds.
fn duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
    let Many(mut values) = Many::<Seconds>::deserialize(deserializer)?;
    match (values.pop(), values.is_empty()) {
        (Some(Seconds(duration)), true) => Ok(duration),
        _ => Err(serde::de::Error::custom("this key has one value")),
    }
}

fn optional_duration<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
    duration(deserializer).map(Some)
}

struct Seconds(Duration);

impl std::str::FromStr for Seconds {
    type Err = String;

    fn from_str(text: &str) -> Result<Seconds, String> {
        crate::engine::plan::parse_seconds(text).map(Seconds)
    }
}

#[cfg(test)]
mod tests;
