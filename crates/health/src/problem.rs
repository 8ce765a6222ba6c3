//! What is wrong with a cluster, and what it amounts to.

use crate::codes::{self, Code, Level};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// One thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What kind of thing it is.
    #[schema(schema_with = codes::schema)]
    pub code: Code,
    /// How bad it is.
    pub level: Level,
    /// What is wrong, and why.
    pub what: String,
    /// What that means for the data and for clients.
    pub consequence: String,
    /// What to do.
    pub next: String,
}

impl Problem {
    /// A problem of the level that its code has.
    #[must_use]
    pub fn new(code: Code, what: String, consequence: impl Into<String>, next: impl Into<String>) -> Problem {
        let level = code.explanation().level;
        Problem { code, level, what, consequence: consequence.into(), next: next.into() }
    }
}

/// The verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Health {
    /// The worst of the problems.
    pub level: Level,
    /// The problems, worst first.
    pub problems: Vec<Problem>,
}

impl Health {
    /// With more problems.
    #[must_use]
    pub fn with(self, more: impl Iterator<Item = Problem>) -> Health {
        let mut problems: Vec<Problem> = self.problems.into_iter().chain(more).collect();
        problems.sort_by_key(|problem| std::cmp::Reverse(problem.level));
        let level = problems.first().map_or(Level::Ok, |problem| problem.level);
        Health { level, problems }
    }
}
