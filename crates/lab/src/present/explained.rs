//! What a plan would do.

use super::text::plain;
use crate::plan::{Place, Plan};
use crate::report::table;
use std::fmt::Write;

/// For a terminal.
#[must_use]
pub fn explained(plan: &Plan) -> String {
    let points = plan.points().unwrap_or_default();
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", plan.title.as_deref().unwrap_or(&plan.name));
    let twin = if plan.control { ", the first subject twice in each" } else { "" };
    let minutes = plan.least_duration().as_secs_f64() / 60.0;
    let (count, rounds) = (points.len(), plan.rounds);
    let _ = writeln!(text, "{count} jobs, {rounds} rounds{twin}: {minutes:.1} minutes at least\n");
    let subjects = plan.subjects.iter().map(|subject| {
        let writes = points.iter().any(|point| point.job.mode.writes() && point.is_for(subject));
        let fate = match (subject.is_filled(), writes) {
            (true, _) => "filled first: what it holds is lost",
            (false, true) => "overwritten by jobs",
            (false, false) => "only read",
        };
        let fate = match subject.place() {
            Some(Place::Directory(_)) => "files are made in it, and stay",
            Some(Place::System(_)) => "commands are run",
            _ => fate,
        };
        let agents: Vec<&str> = plan.agents_of(subject).iter().map(|agent| agent.name.as_str()).collect();
        let by = if agents.is_empty() { "this host".to_owned() } else { agents.join(", ") };
        let size = subject.size.map_or("all of it".to_owned(), |size| size.to_string());
        vec![subject.name.clone(), subject.described(), by, size, fate.to_owned()]
    });
    let headings = ["subject", "what", "load by", "size", "what becomes of it"];
    text += &table::render(&headings, subjects.collect::<Vec<_>>());
    text.push('\n');
    let jobs = points.iter().map(|point| {
        let job = &point.job;
        let rate = match (&point.within, job.rate_iops) {
            (Some(within), _) => format!("the highest with {} at most {}", within.figure, within.at_most),
            (None, Some(rate)) => format!("{rate} a second"),
            (None, None) => "as fast as it can".to_owned(),
        };
        let operations = match &point.run {
            Some(line) => format!("`{line}`"),
            None => format!("{} {}", job.mode, job.block),
        };
        let runtime = job.runtime.unwrap_or_default().as_secs_f64();
        vec![
            point.name.clone(),
            operations,
            job.depth.to_string(),
            point.clients.to_string(),
            rate,
            format!("{runtime} s"),
        ]
    });
    let headings = ["job", "operations", ">depth", ">clients", "rate", ">measured"];
    text += &table::render(&headings, jobs.collect::<Vec<_>>());
    for event in &plan.events {
        let at = event.at.as_secs_f64();
        let _ = writeln!(text, "\nAfter {at} s of each sample: {} (`{}`)", event.name, event.run);
    }
    let before = plan.jobs.iter().filter_map(|job| Some((job.name.as_deref()?, job.before.as_ref()?)));
    for (job, line) in before {
        let _ = writeln!(text, "\nBefore each sample of {job}: `{line}`");
    }
    for subject in &plan.subjects {
        let lines = [
            ("Before", &subject.start),
            ("Before each sample", &subject.before),
            ("In the end", &subject.stop),
        ];
        for (when, line) in lines {
            if let Some(line) = line {
                let _ = writeln!(text, "\n{when}, for {}: `{line}`", subject.name);
            }
        }
    }
    for agent in &plan.agents {
        let _ = writeln!(text, "\nLoad is made by {}: {:?}", agent.name, agent.start());
    }
    plain(&text)
}
