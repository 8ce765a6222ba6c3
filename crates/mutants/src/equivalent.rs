//! Mutants that do what is right as well, as a person says who looked at them: nothing can kill these.
//!
//! They stand in a list with the reason, by the words in which they are told of, as results have them. So they stay known
//! while other code of their file changes; and when theirs does, the list has one that fits no mutant.

use crate::scope::{Catalogue, Mutant};
use anyhow::{Context, ensure};
use serde::Deserialize;
use std::fs;
use std::path::{Path, PathBuf};

/// The list, from the root of the repository.
const LIST: &str = "crates/mutants/equivalent.json";

/// What is listed.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Equivalents(Vec<Entry>);

/// One of them. Whatever else a result has may stand there too.
#[derive(Clone, Debug, Deserialize)]
struct Entry {
    file: PathBuf,
    function: String,
    operator: String,
    original: String,
    mutated: String,
    occurrence: usize,
    /// Why it is equivalent.
    reason: String,
}

impl Entry {
    fn is_of(&self, mutant: &Mutant) -> bool {
        self.file == mutant.file
            && self.function == mutant.function
            && self.operator == mutant.operator
            && self.original == mutant.original
            && self.mutated == mutant.mutated
            && self.occurrence == mutant.occurrence
    }
}

impl Equivalents {
    /// Reads the list of the repository at `root`.
    ///
    /// # Errors
    /// It cannot be read or understood, or one has no reason.
    pub fn read(root: &Path) -> anyhow::Result<Equivalents> {
        let text = fs::read(root.join(LIST)).with_context(|| format!("{LIST}: cannot be read"))?;
        let list: Equivalents =
            serde_json::from_slice(&text).with_context(|| format!("{LIST}: cannot be understood"))?;
        for Entry { function, operator, reason, .. } in &list.0 {
            ensure!(!reason.trim().is_empty(), "{LIST}: {operator} in {function} has no reason");
        }
        Ok(list)
    }

    /// Why this one does what is right as well, if that is known.
    #[must_use]
    pub fn reason(&self, mutant: &Mutant) -> Option<&str> {
        self.0.iter().find(|entry| entry.is_of(mutant)).map(|entry| entry.reason.as_str())
    }

    /// Those that fit no mutant any more: somebody has to look at them again.
    pub fn stale<'a>(&'a self, catalogue: &'a Catalogue) -> impl Iterator<Item = String> + 'a {
        let is_stale = move |entry: &&Entry| !catalogue.mutants.values().any(|mutant| entry.is_of(mutant));
        self.0.iter().filter(is_stale).map(|Entry { file, function, operator, .. }| {
            format!("{}: {operator} in {function}", file.display())
        })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const FILE: &str = "crates/pg/src/a.rs";

    fn mutant(line: usize, original: &str, occurrence: usize) -> Mutant {
        let text = |text: &str| text.to_owned();
        Mutant {
            package: text("pg"),
            file: FILE.into(),
            line,
            column: 5,
            nth: 0,
            function: text("f"),
            operator: text("< becomes <="),
            original: text(original),
            mutated: text("(a) <= (b)"),
            occurrence,
        }
    }

    /// What is read of a list of these, each with its reason, in a repository at `root`.
    pub(crate) fn listed(root: &Path, entries: &[(Mutant, &str)]) -> anyhow::Result<Equivalents> {
        let entry = |(mutant, reason): &(Mutant, &str)| {
            let mut entry = serde_json::to_value(mutant).unwrap();
            entry["reason"] = (*reason).into();
            entry
        };
        fs::create_dir_all(root.join("crates/mutants")).unwrap();
        let entries: Vec<serde_json::Value> = entries.iter().map(entry).collect();
        fs::write(root.join(LIST), serde_json::to_string(&entries).unwrap()).unwrap();
        Equivalents::read(root)
    }

    #[test]
    fn one_that_is_listed_is_known_by_its_words_wherever_it_stands() {
        let root = tempfile::tempdir().unwrap();
        let entries = [(mutant(1, "a < b", 1), "b is never reached"), (mutant(2, "gone", 0), "no more")];
        let list = listed(root.path(), &entries).unwrap();
        assert_eq!(list.reason(&mutant(90, "a < b", 1)), Some("b is never reached"));
        assert_eq!(list.reason(&mutant(1, "a < b", 0)), None, "another in the same words");
        assert_eq!(list.reason(&mutant(1, "a < c", 1)), None);
        let mutants = [(7, mutant(90, "a < b", 1))].into();
        let catalogue = Catalogue { sources: Vec::new(), mutants };
        let stale: Vec<String> = list.stale(&catalogue).collect();
        assert_eq!(stale, [format!("{FILE}: < becomes <= in f")]);
    }

    #[test]
    fn who_gives_no_reason_lists_none() {
        let root = tempfile::tempdir().unwrap();
        assert!(listed(root.path(), &[(mutant(1, "a < b", 0), " ")]).is_err());
        assert!(Equivalents::read(&root.path().join("elsewhere")).is_err(), "there is no list");
    }

    #[test]
    fn the_list_of_this_repository_is_understood() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        Equivalents::read(root).unwrap();
    }
}
