//! Of what code mutants are made.
//!
//! All of the state machines; of `node` what decides and has unit tests. What only moves bytes there, or waits, is tried by
//! whole clusters, which are no judges here.

use crate::find::{self, Site, is_conditional};
use crate::rewrite::on_a_line;
use crate::switch::MUTANTS_MAX;
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use syn::Item;

/// The crates, and which of their modules: all if none is named. Each depends on `base`, where the switch stands.
pub const SCOPE: [(&str, &[&str]); 4] = [("store", &[]), ("pg", &[]), ("client", &[]), ("node", &NODE)];

/// What decides in a node, and has unit tests.
const NODE: [&str; 13] = [
    "bay",
    "candidate",
    "entrance",
    "inboxes",
    "listeners",
    "looks",
    "osd_control",
    "refusals",
    "rounds",
    "stalled",
    "standstill",
    "switchboard",
    "tally",
];

/// Modules that break promises on purpose.
const SABOTAGE: [&str; 1] = ["broken"];

/// One mutant, as a person is told of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mutant {
    /// Its crate.
    #[serde(rename = "crate")]
    pub package: String,
    /// Its file, from the root of the repository.
    pub file: PathBuf,
    /// The line of that file, from 1.
    pub line: usize,
    /// The character in that line, from 1.
    pub column: usize,
    /// Which of those that begin there, from 0.
    pub nth: usize,
    /// The function.
    pub function: String,
    /// What kind of mistake it is.
    pub operator: String,
    /// What stands there.
    pub original: String,
    /// What stands there in the mutant.
    pub mutated: String,
    /// Which of those that are told of in the same words in its file, from 0: lines move, and words stay.
    pub occurrence: usize,
}

impl Mutant {
    /// Tells it from all others of the same sources.
    #[must_use]
    pub fn key(&self) -> String {
        let Mutant { file, line, column, nth, operator, .. } = self;
        format!("{}:{line}:{column}.{nth}: {operator}", file.display())
    }
}

/// A file of which mutants are made.
#[derive(Clone, Debug)]
pub struct Source {
    /// Where it is, from the root of the repository.
    pub file: PathBuf,
    /// Its code.
    pub text: String,
    /// The places in it.
    pub sites: Vec<Site>,
    /// The number of its first mutant. The others follow.
    pub first: u32,
}

/// Everything that mutants are made of, and all that could be made.
#[derive(Clone, Debug, Default)]
pub struct Catalogue {
    /// The files.
    pub sources: Vec<Source>,
    /// The mutants by their numbers.
    pub mutants: BTreeMap<u32, Mutant>,
}

impl Catalogue {
    /// Looks through the repository at `root`.
    ///
    /// # Errors
    /// A file cannot be read, or is no Rust.
    pub fn of(root: &Path) -> anyhow::Result<Catalogue> {
        let mut catalogue = Catalogue::default();
        for (package, modules) in SCOPE {
            let src = Path::new("crates").join(package).join("src");
            catalogue.add_file(root, package, &src.join("lib.rs"), &src, modules)?;
        }
        let keys: BTreeSet<String> = catalogue.mutants.values().map(Mutant::key).collect();
        ensure!(keys.len() == catalogue.mutants.len(), "two mutants are told of in the same words");
        ensure!(
            (catalogue.mutants.len() as u32) < MUTANTS_MAX - 1,
            "there are more mutants than the switch knows"
        );
        Ok(catalogue)
    }

    /// Adds what is in a file and in its modules, those named alone if there are any. They lie in the folder `below`.
    fn add_file(
        &mut self,
        root: &Path,
        package: &str,
        file: &Path,
        below: &Path,
        only: &[&str],
    ) -> anyhow::Result<()> {
        let name = file.display();
        let text = fs::read_to_string(root.join(file)).with_context(|| format!("{name}: cannot be read"))?;
        let parsed = syn::parse_file(&text).with_context(|| format!("{name}: cannot be understood"))?;
        if only.is_empty() {
            self.add_mutants(package, file, text)?;
        }
        for item in &parsed.items {
            let Item::Mod(module) = item else { continue };
            let module_name = module.ident.to_string();
            let is_wanted = only.is_empty() || only.contains(&module_name.as_str());
            if module.content.is_some()
                || is_conditional(&module.attrs)
                || SABOTAGE.contains(&module_name.as_str())
                || !is_wanted
            {
                continue;
            }
            let folder = below.join(&module_name);
            let beside = below.join(format!("{module_name}.rs"));
            let inner = if root.join(&beside).is_file() { beside } else { folder.join("mod.rs") };
            self.add_file(root, package, &inner, &folder, &[])?;
        }
        Ok(())
    }

    fn add_mutants(&mut self, package: &str, file: &Path, text: String) -> anyhow::Result<()> {
        let sites =
            find::sites(&text).with_context(|| format!("{}: cannot be understood", file.display()))?;
        let first = self.mutants.len() as u32 + 1;
        let mut begin_there: BTreeMap<usize, usize> = BTreeMap::new();
        let mut in_same_words: BTreeMap<[String; 4], usize> = BTreeMap::new();
        for site in &sites {
            let before = &text[..site.range.start];
            let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
            for mistake in &site.mistakes {
                let there = begin_there.entry(site.range.start).or_default();
                let nth = std::mem::replace(there, *there + 1);
                let (original, mutated) = (on_a_line(&site.original), on_a_line(&mistake.code));
                let words =
                    [site.function.clone(), mistake.operator.clone(), original.clone(), mutated.clone()];
                let alike = in_same_words.entry(words).or_default();
                let occurrence = std::mem::replace(alike, *alike + 1);
                let mutant = Mutant {
                    package: package.to_owned(),
                    file: file.to_owned(),
                    line: before.matches('\n').count() + 1,
                    column: before[line_start..].chars().count() + 1,
                    nth,
                    function: site.function.clone(),
                    operator: mistake.operator.clone(),
                    original,
                    mutated,
                    occurrence,
                };
                self.mutants.insert(self.mutants.len() as u32 + 1, mutant);
            }
        }
        self.sources.push(Source { file: file.to_owned(), text, sites, first });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
    }

    #[test]
    fn every_module_that_is_named_is_there_and_gives_mutants() {
        let catalogue = Catalogue::of(&root()).unwrap();
        for (package, modules) in SCOPE {
            assert!(catalogue.mutants.values().any(|mutant| mutant.package == package), "{package}");
            for module in modules {
                let file = Path::new("crates").join(package).join("src").join(format!("{module}.rs"));
                assert!(catalogue.mutants.values().any(|mutant| mutant.file == file), "{}", file.display());
            }
        }
    }

    #[test]
    fn tests_and_what_breaks_promises_give_none() {
        let catalogue = Catalogue::of(&root()).unwrap();
        for source in &catalogue.sources {
            let name = source.file.display();
            let is_left_alone = |file| source.file.ends_with(file);
            assert!(
                !["testing.rs", "tests.rs", "fixtures.rs", "broken.rs"].into_iter().any(is_left_alone),
                "{name}"
            );
            let tests = source.text.find("#[cfg(test)]\nmod tests").unwrap_or(source.text.len());
            assert!(source.sites.iter().all(|site| site.range.end <= tests), "{name}");
        }
    }
}
