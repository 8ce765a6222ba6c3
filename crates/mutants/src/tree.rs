//! A copy of the repository, with mutants in some of its files. Files keep their times while they stay as they are, so that
//! what was built of them lasts.

use crate::rewrite::Rewritten;
use crate::scope::{Catalogue, Source};
use anyhow::{Context, bail, ensure};
use base::keyed_hash;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What stands in `base` of the copy: the switch.
const SWITCH: &str = include_str!("switch.rs");
/// The crate where it stands, and what tells that crate of it.
const BASE: &str = "crates/base/src";
const MODULE: &[u8] = b"#[allow(missing_docs)]\npub mod mutant;\n";
/// This crate. What is changed in it makes no other results, unless other mutants are made.
const THIS: &str = "crates/mutants";

/// Repository and copy.
#[derive(Clone, Debug)]
pub struct Tree {
    root: PathBuf,
    copy: PathBuf,
    /// What is in the repository, by the path from its root.
    files: BTreeMap<PathBuf, Vec<u8>>,
}

impl Tree {
    /// Reads the repository at `root`: what git keeps, or would. The copy will lie in the folder `copy`.
    ///
    /// # Errors
    /// Git, or the file system.
    pub fn read(root: &Path, copy: PathBuf) -> anyhow::Result<Tree> {
        let listing = Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(root)
            .output()
            .context("git cannot be started")?;
        if !listing.status.success() {
            bail!("git does not list the files: {}", String::from_utf8_lossy(&listing.stderr).trim());
        }
        let mut files = BTreeMap::new();
        for name in String::from_utf8(listing.stdout)?.split_terminator('\0') {
            match fs::read(root.join(name)) {
                Ok(content) => drop(files.insert(PathBuf::from(name), content)),
                // Removed, and git was not told yet.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error).with_context(|| format!("{name}: cannot be read")),
            }
        }
        ensure!(
            files.contains_key(Path::new("Cargo.toml")),
            "{}: is not the root of the repository",
            root.display()
        );
        Ok(Tree { root: root.to_owned(), copy, files })
    }

    /// The repository.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Where the copy is.
    #[must_use]
    pub fn copy(&self) -> &Path {
        &self.copy
    }

    /// Tells the sources of what is built, with all mutants in them, from all others, most likely.
    #[must_use]
    pub fn fingerprint(&self, catalogue: &Catalogue) -> String {
        let is_source = |path: &Path| {
            ["crates", "Cargo.toml", "Cargo.lock"].iter().any(|begin| path.starts_with(begin))
                && !path.starts_with(THIS)
        };
        let rewritten = rewritten(catalogue, |_| true);
        let mut parts: Vec<Vec<u8>> = vec![SWITCH.as_bytes().to_vec()];
        for (path, content) in self.files.iter().filter(|(path, _)| is_source(path)) {
            let content = in_copy(path, content, &rewritten);
            parts.push(format!("{}\0{}\0", path.display(), content.len()).into_bytes());
            parts.push(content.into_owned());
        }
        format!("{:016x}", keyed_hash(&[0; 16], parts.iter().map(Vec::as_slice)))
    }

    /// Makes the copy what it shall be: with those mutants in it that are `wanted`. Gives the files that have any, by their
    /// paths from its root.
    ///
    /// # Errors
    /// The file system.
    pub fn write(
        &self,
        catalogue: &Catalogue,
        wanted: impl Fn(u32) -> bool,
    ) -> anyhow::Result<BTreeMap<PathBuf, Rewritten>> {
        let rewritten = rewritten(catalogue, wanted);
        for (path, content) in &self.files {
            self.put(path, &in_copy(path, content, &rewritten))?;
        }
        let switch = Path::new(BASE).join("mutant.rs");
        self.put(&switch, SWITCH.as_bytes())?;
        self.remove_others(Path::new(""), &self.files.keys().cloned().chain([switch]).collect())?;
        Ok(rewritten)
    }

    fn put(&self, path: &Path, content: &[u8]) -> anyhow::Result<()> {
        let place = self.copy.join(path);
        if fs::read(&place).is_ok_and(|before| before == content) {
            return Ok(());
        }
        let failed = || format!("{}: cannot be written", place.display());
        fs::create_dir_all(place.parent().unwrap_or(&self.copy)).with_context(failed)?;
        fs::write(&place, content).with_context(failed)
    }

    /// Removes what is in a folder of the copy and not to be there.
    fn remove_others(&self, folder: &Path, kept: &BTreeSet<PathBuf>) -> anyhow::Result<()> {
        for entry in fs::read_dir(self.copy.join(folder))? {
            let entry = entry?;
            let path = folder.join(entry.file_name());
            if entry.file_type()?.is_dir() {
                self.remove_others(&path, kept)?;
            } else if !kept.contains(&path) {
                fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }
}

/// The files that have mutants in the copy, if they have those that are wanted.
fn rewritten(catalogue: &Catalogue, wanted: impl Fn(u32) -> bool) -> BTreeMap<PathBuf, Rewritten> {
    let rewrite = |source: &Source| Rewritten::new(&source.text, &source.sites, source.first, &wanted);
    catalogue.sources.iter().map(|source| (source.file.clone(), rewrite(source))).collect()
}

/// What a file of the repository is in the copy.
fn in_copy<'a>(path: &Path, content: &'a [u8], rewritten: &'a BTreeMap<PathBuf, Rewritten>) -> Cow<'a, [u8]> {
    match rewritten.get(path) {
        Some(rewritten) => Cow::Borrowed(rewritten.text.as_bytes()),
        None if path == Path::new(BASE).join("lib.rs") => Cow::Owned([content, MODULE].concat()),
        None => Cow::Borrowed(content),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn git(root: &Path, arguments: &[&str]) {
        assert!(Command::new("git").args(arguments).current_dir(root).status().unwrap().success());
    }

    #[test]
    fn a_copy_has_what_the_repository_has_and_the_switch_and_keeps_what_did_not_change() {
        let scratch = tempfile::tempdir().unwrap();
        let (root, copy) = (scratch.path().join("root"), scratch.path().join("copy"));
        fs::create_dir_all(root.join("crates/base/src")).unwrap();
        fs::write(root.join("Cargo.toml"), "[workspace]\n").unwrap();
        fs::write(root.join("crates/base/src/lib.rs"), "//! Base.\n").unwrap();
        symlink("Cargo.toml", root.join("linked.toml")).unwrap();
        git(&root, &["init", "--quiet"]);
        let write =
            || Tree::read(&root, copy.clone()).unwrap().write(&Catalogue::default(), |_| true).unwrap();
        write();
        assert_eq!(
            fs::read_to_string(copy.join("linked.toml")).unwrap(),
            "[workspace]\n",
            "links are followed"
        );
        let base = fs::read_to_string(copy.join("crates/base/src/lib.rs")).unwrap();
        assert!(base.starts_with("//! Base.\n") && base.contains("pub mod mutant;"), "{base}");
        assert_eq!(fs::read_to_string(copy.join("crates/base/src/mutant.rs")).unwrap(), SWITCH);

        let changed_at = |name: &str| fs::metadata(copy.join(name)).unwrap().modified().unwrap();
        let before = changed_at("Cargo.toml");
        let fingerprint = || Tree::read(&root, copy.clone()).unwrap().fingerprint(&Catalogue::default());
        let first = fingerprint();
        fs::create_dir_all(root.join("crates/mutants/src")).unwrap();
        fs::write(root.join("crates/mutants/src/judge.rs"), "//! Judges.\n").unwrap();
        assert_eq!(fingerprint(), first, "what judges makes no other mutants");
        fs::remove_file(root.join("linked.toml")).unwrap();
        fs::write(root.join("crates/base/src/lib.rs"), "//! Base, changed.\n").unwrap();
        write();
        assert!(!copy.join("linked.toml").exists());
        assert!(fs::read_to_string(copy.join("crates/base/src/lib.rs")).unwrap().contains("changed"));
        assert_eq!(changed_at("Cargo.toml"), before);
        assert_ne!(fingerprint(), first);
    }
}
