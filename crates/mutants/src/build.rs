//! The programs that judges run, made of the copy. Mutants that do not compile are found by what the compiler says, and left
//! out of the next attempt, until all is built.

use crate::rewrite::{Blame, Rewritten};
use crate::scope::{Catalogue, SCOPE};
use crate::tree::Tree;
use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// What is built of tests, beside those that stand in the code: of the store's starts and figures, and of nodes without
/// a cluster around them. Those of whole clusters are lives of the simulator here.
const TESTS: [&str; 5] = ["damage", "figures", "fences", "manager", "sizes"];

/// They link what mutants are made of, and their unit tests come by nothing of it but names and types: the command, the
/// benchmarks, and this program. They and what they alone depend on take minutes to build.
const NOT_ASKED: [&str; 3] = ["millpond", "lab", env!("CARGO_PKG_NAME")];

/// After so many attempts at a crate, and whenever what the check let pass does not build, all mutants of a function are left out
/// that an error is about: few are lost so, and none of the attempts that follow is wasted. Of a crate, for the errors of one
/// are seen only when those that it depends on have none any more.
const ATTEMPTS_NARROW: usize = 12;

/// The compiler's errors about what is moved, borrowed, or not there yet.
const OF_FLOW: [&str; 7] = ["E0381", "E0382", "E0499", "E0502", "E0503", "E0505", "E0506"];

/// How the code is built.
const PROFILE: &str = "quick";

/// A program of tests.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct TestProgram {
    /// The crate, and which tests of it.
    pub name: String,
    /// The program.
    pub program: PathBuf,
    /// The folder of the crate, where its tests are run.
    pub directory: PathBuf,
}

/// Mutants that are not built.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftOut {
    /// They do not compile, as far as the compiler's errors tell.
    pub not_viable: BTreeSet<u32>,
    /// They stand in a function with some of those, and were left out with them: perhaps they would compile.
    pub beside: BTreeSet<u32>,
}

impl LeftOut {
    /// Whether a mutant is among them.
    #[must_use]
    pub fn has(&self, mutant: u32) -> bool {
        self.not_viable.contains(&mutant) || self.beside.contains(&mutant)
    }

    fn count(&self) -> usize {
        self.not_viable.len() + self.beside.len()
    }

    /// Leaves out what an error is about, and with `is_wide` all else of its functions.
    fn add(&mut self, error: &Diagnostic, rewritten: &BTreeMap<PathBuf, Rewritten>, is_wide: bool) {
        self.not_viable.extend(error.blamed(rewritten, false));
        if is_wide {
            self.beside.extend(error.blamed(rewritten, true));
        }
        self.beside.retain(|mutant| !self.not_viable.contains(mutant));
    }
}

/// All that was built.
#[derive(Clone, Debug, Default)]
pub struct Programs {
    /// Tests.
    pub tests: Vec<TestProgram>,
    /// The simulator.
    pub simulator: PathBuf,
}

/// A line of what cargo says.
#[derive(Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum Line {
    CompilerMessage {
        target: Target,
        message: Diagnostic,
    },
    CompilerArtifact {
        manifest_path: PathBuf,
        target: Target,
        profile: Profile,
        executable: Option<PathBuf>,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
struct Diagnostic {
    message: String,
    level: String,
    code: Option<Code>,
    spans: Vec<Span>,
    children: Vec<Diagnostic>,
    rendered: Option<String>,
}

#[derive(Deserialize)]
struct Code {
    code: String,
}

#[derive(Deserialize)]
struct Span {
    file_name: PathBuf,
    byte_start: usize,
    byte_end: usize,
    is_primary: bool,
    label: Option<String>,
    expansion: Option<Box<Expansion>>,
}

#[derive(Deserialize)]
struct Expansion {
    span: Span,
}

#[derive(Deserialize)]
struct Target {
    kind: Vec<String>,
    name: String,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

/// What a run of cargo came to.
#[derive(Default)]
struct Run {
    is_success: bool,
    /// By the crates in which they are.
    errors: BTreeMap<String, Vec<Diagnostic>>,
    programs: Programs,
}

impl Diagnostic {
    /// What it points at, by files.
    fn blames(&self, is_wide: bool) -> BTreeMap<PathBuf, Blame> {
        let mut blames = BTreeMap::new();
        self.add_to(&mut blames, true);
        let labels = self.spans.iter().filter_map(|span| span.label.as_deref());
        let lacks_value =
            labels.chain([self.message.as_str()]).any(|text| text.contains("()") || text.contains("`else`"));
        let is_of_flow = self.code.as_ref().is_some_and(|code| OF_FLOW.contains(&code.code.as_str()));
        for blame in blames.values_mut() {
            (blame.lacks_value, blame.is_of_flow, blame.is_wide) = (lacks_value, is_of_flow, is_wide);
        }
        blames
    }

    fn add_to(&self, blames: &mut BTreeMap<PathBuf, Blame>, is_own: bool) {
        for span in &self.spans {
            // What comes from a macro is where that is called, too.
            let mut next = Some(span);
            while let Some(one) = next {
                let blame = blames.entry(one.file_name.clone()).or_default();
                let bytes = one.byte_start..one.byte_end;
                if is_own && span.is_primary {
                    blame.primary.push(bytes)
                } else {
                    blame.secondary.push(bytes)
                }
                next = one.expansion.as_ref().map(|expansion| &expansion.span);
            }
        }
        self.children.iter().for_each(|child| child.add_to(blames, false));
    }

    /// Which mutants it is about, or may be.
    fn blamed(&self, rewritten: &BTreeMap<PathBuf, Rewritten>, is_wide: bool) -> BTreeSet<u32> {
        let blames = self.blames(is_wide);
        // Where the error is comes before what it has to do with.
        let (first, rest): (Vec<_>, Vec<_>) = blames.iter().partition(|(_, blame)| !blame.primary.is_empty());
        let of_file = |(path, blame): (&PathBuf, &Blame)| rewritten.get(path).map(|file| file.blamed(blame));
        let mut found = first.into_iter().chain(rest).filter_map(of_file);
        found.find(|blamed| !blamed.is_empty()).unwrap_or_default()
    }
}

fn cargo(tree: &Tree, subcommand: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.arg(subcommand).current_dir(tree.copy()).stdin(Stdio::null());
    command
}

/// The crates that link any of those that mutants are made of, and these, without those that are not asked.
fn concerned(tree: &Tree) -> anyhow::Result<BTreeSet<String>> {
    let output = cargo(tree, "metadata").args(["--no-deps", "--format-version", "1"]).output()?;
    ensure!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr).trim());
    let metadata: Metadata = serde_json::from_slice(&output.stdout)?;
    let mut concerned: BTreeSet<String> = SCOPE.iter().map(|(name, _)| (*name).to_owned()).collect();
    loop {
        let links = |package: &&Package| {
            let mut own = package.dependencies.iter().filter(|one| one.kind.is_none());
            own.any(|one| concerned.contains(&one.name))
        };
        let found: Vec<String> =
            metadata.packages.iter().filter(links).map(|package| package.name.clone()).collect();
        let before = concerned.len();
        concerned.extend(found);
        if concerned.len() == before {
            concerned.retain(|name| !NOT_ASKED.contains(&name.as_str()));
            return Ok(concerned);
        }
    }
}

/// Runs cargo on these crates, and shows how far it is.
fn run(mut command: Command, packages: &BTreeSet<String>, target: &Path) -> anyhow::Result<Run> {
    for package in packages {
        command.args(["--package", package]);
    }
    command
        .args(["--profile", PROFILE, "--locked", "--message-format", "json"])
        .arg("--target-dir")
        .arg(target);
    // What would be bad style is no reason for a mutant not to be built.
    command
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", "--cap-lints allow")
        .stdout(Stdio::piped());
    let mut child = command.spawn().context("cargo cannot be started")?;
    let stdout = child.stdout.take().context("the output of cargo is not there")?;
    let mut run = Run::default();
    for line in BufReader::new(stdout).lines() {
        let line = line?;
        match serde_json::from_str(&line)
            .with_context(|| format!("cargo says what is not understood: {line}"))?
        {
            Line::CompilerMessage { target, message } if message.level.starts_with("error") => {
                run.errors.entry(target.name).or_default().push(message);
            }
            Line::CompilerArtifact { manifest_path, target, profile, executable: Some(program) } => {
                let directory = manifest_path.parent().unwrap_or(Path::new("/")).to_owned();
                let package = directory.file_name().unwrap_or_default().to_string_lossy().into_owned();
                let kind = target.kind.first().map_or("", String::as_str);
                if profile.test {
                    let which = if kind == "test" {
                        format!("tests/{}.rs", target.name)
                    } else {
                        "unit tests".to_owned()
                    };
                    let which =
                        if kind == "bin" { format!("{which} of the program {}", target.name) } else { which };
                    run.programs.tests.push(TestProgram {
                        name: format!("{package}: {which}"),
                        program,
                        directory,
                    });
                } else if kind == "bin" && target.name == "sim" {
                    run.programs.simulator = program;
                }
            }
            Line::CompilerMessage { .. } | Line::CompilerArtifact { .. } | Line::Other => {}
        }
    }
    run.is_success = child.wait()?.success();
    run.programs.tests.sort();
    Ok(run)
}

/// Whether all of it compiles, which takes seconds to tell.
fn check(tree: &Tree, target: &Path) -> anyhow::Result<Run> {
    let mut checked: BTreeSet<String> = SCOPE.iter().map(|(name, _)| (*name).to_owned()).collect();
    // With it they are built as it wants them.
    checked.insert("sim".to_owned());
    let mut check = cargo(tree, "check");
    check.args(["--keep-going", "--lib"]);
    run(check, &checked, target)
}

/// Builds all programs, which takes minutes.
fn make(tree: &Tree, target: &Path) -> anyhow::Result<Run> {
    let mut test = cargo(tree, "test");
    test.args(["--no-run", "--lib", "--bins"]);
    for name in TESTS {
        test.args(["--test", name]);
    }
    run(test, &concerned(tree)?, target)
}

/// Builds everything in `target`. Adds to those that are `left_out`, and tells `note` each time that it did, so that another
/// run need not find them again.
///
/// # Errors
/// Something is not built, and no mutant is the cause as far as can be seen.
pub fn build(
    tree: &Tree,
    catalogue: &Catalogue,
    target: &Path,
    left_out: &mut LeftOut,
    mut note: impl FnMut(&LeftOut) -> anyhow::Result<()>,
) -> anyhow::Result<Programs> {
    println!("{} mutants could be made", catalogue.mutants.len());
    let mut attempts: BTreeMap<String, usize> = BTreeMap::new();
    loop {
        let rewritten = tree.write(catalogue, |mutant| !left_out.has(mutant))?;
        let mut run = check(tree, target)?;
        let is_checked = run.is_success;
        if is_checked {
            println!("{} of them are left out; the others are built", left_out.count());
            run = make(tree, target)?;
        }
        if run.is_success {
            ensure!(run.programs.simulator.is_file(), "the simulator was not built");
            return Ok(run.programs);
        }
        ensure!(!run.errors.is_empty(), "cargo fails, and above it says why: no code is to blame");
        let before = left_out.count();
        for (name, errors) in &run.errors {
            let attempts = attempts.entry(name.clone()).or_default();
            *attempts += 1;
            let (before, is_wide) = (left_out.count(), is_checked || *attempts > ATTEMPTS_NARROW);
            errors.iter().for_each(|error| left_out.add(error, &rewritten, is_wide));
            println!(
                "{name}, attempt {attempts}: {} errors, {} mutants more are left out",
                errors.len(),
                left_out.count() - before
            );
        }
        if left_out.count() == before {
            let told = run.errors.values().flatten().filter_map(|error| error.rendered.as_deref());
            let told: Vec<&str> = told.collect();
            bail!("this does not compile, whatever mutants are left out:\n{}", told.join("\n"));
        }
        note(left_out)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::find;

    /// What the compiler says of a file, at the only place where these words stand.
    fn error(text: &str, at: &str, code: &str, message: &str) -> Diagnostic {
        assert_eq!(text.matches(at).count(), 1, "{at} in {text}");
        let begin = text.find(at).unwrap();
        let end = begin + at.len();
        let json = format!(
            r#"{{"reason":"compiler-message","target":{{"kind":["lib"],"name":"a"}},"message":{{"message":"{message}","level":"error","children":[],"rendered":null,
            "code":{{"code":"{code}","explanation":null}},
            "spans":[{{"file_name":"a.rs","byte_start":{begin},"byte_end":{end},"is_primary":true,"label":null,
            "expansion":null}}]}}}}"#
        );
        match serde_json::from_str(&json).unwrap() {
            Line::CompilerMessage { target, message } if target.name == "a" => message,
            _ => panic!("it is a message of that crate"),
        }
    }

    fn blamed(source: &str, at: &str, message: &str) -> BTreeSet<u32> {
        blamed_for(source, at, "E0308", message)
    }

    fn blamed_for(source: &str, at: &str, code: &str, message: &str) -> BTreeSet<u32> {
        blamed_by(source, at, code, message, false)
    }

    fn blamed_by(source: &str, at: &str, code: &str, message: &str, is_wide: bool) -> BTreeSet<u32> {
        let file = Rewritten::new(source, &find::sites(source).unwrap(), 1, |_| true);
        let error = error(&file.text, at, code, message);
        error.blamed(&BTreeMap::from([(PathBuf::from("a.rs"), file)]), is_wide)
    }

    #[test]
    fn an_error_in_what_a_mutant_has_alone_is_its_own() {
        let source = "fn f(a: A, b: A) -> A { a + b }";
        // The body's value is mutant 1.
        assert_eq!(blamed(source, "(a) - (b)", "no implementation for `A - A`"), BTreeSet::from([2]));
        assert_eq!(
            blamed(source, "Default::default()", "the trait bound `A: Default` is not satisfied"),
            BTreeSet::from([1])
        );
    }

    #[test]
    fn an_error_in_what_mutants_share_is_of_the_innermost() {
        let source = "fn f(a: u8, b: u8) -> bool { a < b && b < 7 }";
        let numbers = |at| blamed(source, at, "types differ");
        // 3 is the conjunction, 4 and 5 are the first comparison, 6 and 7 the other, 8 is the literal in it.
        assert_eq!(numbers("a < b })"), BTreeSet::from([4, 5]));
        assert_eq!(numbers("b < (if"), BTreeSet::from([6, 7]));
        assert_eq!(numbers("else { 7 }"), BTreeSet::from([8]));
    }

    #[test]
    fn what_is_left_out_and_had_a_value_is_blamed_for_the_lack_of_it() {
        let source = "fn f(a: bool) -> u8 { let b = if a { 1 } else { g(); return 2; }; b }";
        let literal = "(if ::base::mutant::is(8) { 2 + 1 } else { 2 })";
        let at = format!(
            "{{ if !::base::mutant::is(6) {{ g(); }} if !::base::mutant::is(7) {{ return {literal}; }} }}"
        );
        assert_eq!(blamed(source, &at, "expected integer, found `()`"), BTreeSet::from([6, 7]));
    }

    #[test]
    fn what_is_gone_where_execution_would_have_returned_is_the_fault_of_that_return() {
        let source = "fn f(a: A) { if b { return c; } if d { e(a); return g; } h(a); return i; }";
        // 1 is the body, 2 and 3, 4 and 5 the conditions, 6 and 7 what follows the second, 8 and 9 the rest.
        assert_eq!(
            blamed_for(
                source,
                "e(a); } if !::base::mutant::is(7) { return g; } } if !::base::mutant::is(8) { h(a)",
                "E0382",
                "use of moved value"
            ),
            BTreeSet::from([7])
        );
        let source = "fn f(a: A) { if b { return c; } if d { let g = e(a); return g; } h(a); return i; }";
        assert_eq!(blamed_for(source, "e(a)", "E0382", "use of moved value"), BTreeSet::from([6]));
        // 5 and 6 are the assignment and the return behind it.
        let source = "fn f(a: &mut A) { loop { let (b, c) = d(a); if e { g(b); a = c; return h; } } } fn i() { k = l; j() }";
        assert_eq!(
            blamed_for(source, "d(a)", "E0499", "borrowed in the previous iteration"),
            BTreeSet::from([5])
        );
    }

    #[test]
    fn an_error_beside_all_mutants_is_of_the_whole_function() {
        let source = "fn f(a: u8) -> u8 { let c = a; c + 1 }\nfn g() -> u8 { 2 }";
        assert_eq!(blamed(source, "let c = a", "of no known type"), BTreeSet::from([1, 2, 3, 4]));
        assert_eq!(blamed(source, "fn g", "unknown"), BTreeSet::new());
    }

    #[test]
    fn in_the_end_an_error_is_of_the_whole_function_wherever_it_is() {
        let source = "fn f(a: A, b: A) -> A { a + b }\nfn g() -> u8 { 2 }";
        let by = |is_wide| blamed_by(source, "(a) - (b)", "E0369", "no implementation for `A - A`", is_wide);
        assert_eq!(by(false), BTreeSet::from([2]));
        assert_eq!(by(true), BTreeSet::from([1, 2]));
    }

    #[test]
    fn what_is_left_out_beside_an_error_is_not_said_not_to_compile() {
        let source = "fn f(a: A, b: A) -> A { a + b }";
        let file = Rewritten::new(source, &find::sites(source).unwrap(), 1, |_| true);
        let message = "no implementation for `A - A`";
        let error_at = |at| error(&file.text, at, "E0369", message);
        let (sum, body) = (error_at("(a) - (b)"), error_at("Default::default()"));
        let files = BTreeMap::from([(PathBuf::from("a.rs"), file)]);
        let mut left_out = LeftOut::default();
        left_out.add(&sum, &files, true);
        let (not_viable, beside) = (BTreeSet::from([2]), BTreeSet::from([1]));
        assert_eq!(left_out, LeftOut { not_viable, beside });
        assert!(left_out.has(1) && left_out.has(2) && !left_out.has(3));
        left_out.add(&body, &files, true);
        assert_eq!(left_out, LeftOut { not_viable: BTreeSet::from([1, 2]), beside: BTreeSet::new() });
    }
}
