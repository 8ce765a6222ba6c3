//! The directory.

use super::hlog;
use super::outcome::{FIGURES, FORMAT, Outcome, Sample};
use crate::testbed::keeper::{self, Leftover};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

const RUN: &str = "run.json";
const LATENCIES: &str = "latency.hlog";
const SECONDS: &str = "seconds.csv";
const METRICS: &str = "metrics.txt";

/// Why an archive cannot be written or read.
#[derive(thiserror::Error, Debug)]
pub enum ArchiveError {
    /// There is something already.
    #[error("{0} is there already; give another directory with --out")]
    Exists(PathBuf),
    /// The file system refuses.
    #[error("{path}: {error}")]
    File {
        /// What.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It is none.
    #[error("{path} is no archive of a run: {reason}; `millpond lab run` makes them")]
    None {
        /// What.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

/// Where the outcome of a run is kept.
#[derive(Debug)]
pub struct Archive {
    directory: PathBuf,
    /// How many samples' latencies are in it.
    appended: usize,
}

impl Archive {
    /// Makes the directory, which must not be there, with the plan, which is called `name` there, and nothing that came of it. It is
    /// there whole or not at all.
    ///
    /// # Errors
    /// It is there, or cannot be made.
    pub fn create(directory: &Path, name: &str, plan: &str) -> Result<Archive, ArchiveError> {
        if directory.symlink_metadata().is_ok() {
            return Err(ArchiveError::Exists(directory.to_owned()));
        }
        let mut hidden = OsString::from(".");
        hidden.push(directory.file_name().unwrap_or(directory.as_os_str()));
        hidden.push(format!(".{}", std::process::id()));
        let hidden = directory.with_file_name(hidden);
        let kept = keeper::keep(Leftover::Directory(hidden.clone()));
        let made = Archive::make(&hidden, name, plan).and_then(|archive| {
            fs::rename(&hidden, directory).map_err(|error| match error.kind() {
                // Of two at the same time the second finds that there is something in it.
                ErrorKind::DirectoryNotEmpty => ArchiveError::Exists(directory.to_owned()),
                _ => file(directory, error),
            })?;
            Ok(Archive { directory: directory.to_owned(), ..archive })
        });
        if made.is_err() {
            let _ = fs::remove_dir_all(&hidden);
        }
        drop(kept);
        made
    }

    fn make(directory: &Path, name: &str, plan: &str) -> Result<Archive, ArchiveError> {
        fs::create_dir_all(directory).map_err(|error| file(directory, error))?;
        let mut archive = Archive { directory: directory.to_owned(), appended: 0 };
        archive.put(name, plan.as_bytes())?;
        archive.write(&Outcome::begun(name, "", 0, 0))?;
        Ok(archive)
    }

    /// Where it is.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Writes what has come so far.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write(&mut self, outcome: &Outcome) -> Result<(), ArchiveError> {
        let path = self.directory.join(LATENCIES);
        let failed = |error| file(&path, error);
        let mut log = OpenOptions::new().create(true).append(true).open(&path).map_err(failed)?;
        for sample in &outcome.samples[self.appended..] {
            let lines = hlog::lines(sample, self.appended == 0).map_err(failed)?;
            log.write_all(&lines).map_err(failed)?;
            self.appended += 1;
        }
        // The samples that it names are there before it.
        let text = serde_json::to_string(outcome).map_err(|error| failed(std::io::Error::other(error)))?;
        self.put(RUN, text.as_bytes())
    }

    /// Writes what is made of it all for other programs.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_tables(&self, outcome: &Outcome) -> Result<(), ArchiveError> {
        self.put(SECONDS, seconds(outcome).as_bytes())?;
        self.put(METRICS, metrics(outcome).as_bytes())
    }

    /// Writes a file of it, all or nothing.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn put(&self, name: &str, bytes: &[u8]) -> Result<(), ArchiveError> {
        let (path, unfinished) = (self.directory.join(name), self.directory.join(format!("{name}.new")));
        let write = || {
            // What a killed run left, or a link that somebody put there.
            match fs::remove_file(&unfinished) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            File::create_new(&unfinished)?.write_all(bytes)?;
            fs::rename(&unfinished, &path)
        };
        write().map_err(|error| file(&path, error))
    }

    /// Reads one, with all latencies; and where it is.
    ///
    /// # Errors
    /// There is none, or it makes no sense.
    pub fn open(directory: &Path) -> Result<(Archive, Outcome), ArchiveError> {
        let none = |reason: String| ArchiveError::None { path: directory.to_owned(), reason };
        let path = directory.join(RUN);
        let text = fs::read_to_string(&path).map_err(|error| none(format!("{}: {error}", path.display())))?;
        let mut outcome: Outcome =
            serde_json::from_str(&text).map_err(|error| none(format!("{}: {error}", path.display())))?;
        if outcome.format > FORMAT {
            return Err(none(format!("it is of format {}, and this build reads {FORMAT}", outcome.format)));
        }
        let beyond = |sample: &Sample| {
            sample.subject >= outcome.subjects.len() || sample.point >= outcome.points.len()
        };
        if outcome.samples.iter().any(beyond) {
            return Err(none(format!("{}: a sample is of no subject or point", path.display())));
        }
        let names = outcome.subjects.iter().map(|subject| &subject.name);
        let names = names.chain(outcome.points.iter().map(|point| &point.name)).chain([&outcome.name]);
        let is_odd = |c: char| c.is_control() || matches!(c, '"' | '\\' | ',' | '<' | '>' | '|');
        if let Some(name) = names.into_iter().find(|name| name.chars().any(is_odd)) {
            return Err(none(format!("{}: {name:?} is no name that a plan could have", path.display())));
        }
        let latencies = directory.join(LATENCIES);
        let bytes =
            fs::read(&latencies).map_err(|error| none(format!("{}: {error}", latencies.display())))?;
        hlog::read(&bytes, &mut outcome.samples);
        let appended = outcome.samples.len();
        Ok((Archive { directory: directory.to_owned(), appended }, outcome))
    }
}

fn file(path: &Path, error: std::io::Error) -> ArchiveError {
    ArchiveError::File { path: path.to_owned(), error }
}

/// The names of a sample's subject, point and round.
fn place<'a>(outcome: &'a Outcome, sample: &Sample) -> (&'a str, &'a str, String) {
    let twin = if sample.is_control { "c" } else { "" };
    let round = format!("{}{twin}", sample.round);
    (&outcome.subjects[sample.subject].name, &outcome.points[sample.point].name, round)
}

fn number(of: Option<f64>) -> String {
    of.map_or_else(String::new, |of| format!("{of:.1}"))
}

/// One line for each second. Names of points have no commas in them.
fn seconds(outcome: &Outcome) -> String {
    let mut text = String::from("subject,point,round,at_s,seconds,read_iops,write_iops,mean_us,p99_us\n");
    for sample in &outcome.samples {
        let (subject, point, round) = place(outcome, sample);
        for second in &sample.series {
            let (mean_us, p99_us) = (number(second.mean_us), number(second.p99_us));
            let (at_s, length) = (second.at_s, second.seconds);
            let (reads, writes) = (second.read_iops, second.write_iops);
            // Writing to a String cannot fail.
            let _ = writeln!(
                text,
                "{subject},{point},{round},{at_s:.3},{length:.3},{reads:.1},{writes:.1},{mean_us},{p99_us}"
            );
        }
    }
    text
}

/// One metric for each figure, a line of it for each sample: <https://prometheus.io/docs/specs/om/open_metrics_spec/>.
fn metrics(outcome: &Outcome) -> String {
    let mut text = String::new();
    for figure in &FIGURES {
        let name = format!("millpond_lab_{}", figure.name);
        let _ = writeln!(text, "# TYPE {name} gauge\n# HELP {name} {} of a sample.", figure.heading);
        for sample in &outcome.samples {
            let (subject, point, round) = place(outcome, sample);
            if let Some(value) = (figure.of)(sample) {
                let _ = writeln!(
                    text,
                    "{name}{{run=\"{}\",subject=\"{subject}\",point=\"{point}\",round=\"{round}\"}} {value}",
                    outcome.name
                );
            }
        }
    }
    text + "# EOF\n"
}
