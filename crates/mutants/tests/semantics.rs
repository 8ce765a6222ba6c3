//! What a program with mutants in it does: without one that is on, what it did before; with one, something else.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use mutants::find;
use mutants::rewrite::Rewritten;
use mutants::switch::{MUTANT, REACHED};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SAMPLE: &str = include_str!("sample/machine.rs");
const SWITCH: &str = include_str!("../src/switch.rs");

fn rustc(folder: &Path, arguments: &[&str]) {
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut command = Command::new(rustc);
    command.args(["--edition", "2024", "--cap-lints", "allow"]).args(arguments).current_dir(folder);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Builds the sample as it is, and with all its mutants. Gives both programs, and how many mutants there are.
fn built(folder: &Path) -> (PathBuf, PathBuf, u32) {
    let sites = find::sites(SAMPLE).unwrap();
    let mutants: usize = sites.iter().map(|site| site.mistakes.len()).sum();
    fs::write(folder.join("base.rs"), "pub mod mutant;\n").unwrap();
    fs::write(folder.join("mutant.rs"), SWITCH).unwrap();
    fs::write(folder.join("original.rs"), SAMPLE).unwrap();
    fs::write(folder.join("mutated.rs"), Rewritten::new(SAMPLE, &sites, 1, |_| true).text).unwrap();
    rustc(folder, &["--crate-type", "lib", "base.rs"]);
    rustc(folder, &["original.rs"]);
    rustc(folder, &["mutated.rs", "--extern", "base=libbase.rlib"]);
    (folder.join("original"), folder.join("mutated"), mutants as u32)
}

#[test]
fn without_a_mutant_a_program_does_what_it_did_and_each_mutant_changes_that() {
    let folder = tempfile::tempdir().unwrap();
    let (original, mutated, mutants) = built(folder.path());
    let output = |command: &mut Command| -> Output { command.env("RUST_BACKTRACE", "0").output().unwrap() };
    let wanted = output(&mut Command::new(original));
    assert!(wanted.status.success() && !wanted.stdout.is_empty());
    assert_eq!(output(&mut Command::new(&mutated)), wanted);

    let reached = folder.path().join("reached");
    assert_eq!(output(Command::new(&mutated).env(REACHED, &reached)), wanted, "it is watched");
    let text = fs::read_to_string(&reached).unwrap();
    let numbers: BTreeSet<u32> = text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(numbers, (1..=mutants).collect());
    assert_eq!(text.lines().count(), mutants as usize, "each is told of once");

    let all = 1..=mutants;
    let alike = all.filter(|number| output(Command::new(&mutated).env(MUTANT, number.to_string())) == wanted);
    assert_eq!(alike.collect::<Vec<u32>>(), Vec::<u32>::new());
}
