//! On which terms a client negotiates.

/// What a client may do with an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Admittance {
    /// It does not learn that it is there.
    Hidden,
    /// Read it.
    Read,
    /// Read and write it, as far as the export is written to at all.
    Write,
}

/// On which terms a client negotiates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Terms {
    /// Nobody asks who it is: all exports are there for it, and nothing is encrypted.
    Open,
    /// It must encrypt before anything else.
    MustEncrypt,
    /// It has encrypted, and is known: what it may do with each export, by its place in [`super::Exports`].
    Admitted(Vec<Admittance>),
    /// It has encrypted, and is told that reason why it may do nothing.
    Refused(String),
}

impl Terms {
    /// What it may do with an export, by its place.
    #[must_use]
    pub fn with(&self, export: usize) -> Admittance {
        match self {
            Terms::Open => Admittance::Write,
            Terms::MustEncrypt | Terms::Refused(_) => Admittance::Hidden,
            Terms::Admitted(all) => all.get(export).copied().unwrap_or(Admittance::Hidden),
        }
    }
}
