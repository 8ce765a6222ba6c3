//! What became of mutants: kept in a file from one sitting to the next, and shown as a table.

use crate::scope::{Mutant, SCOPE};
use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A judge noticed.
    Killed {
        /// Which.
        judge: String,
        /// What it said.
        evidence: String,
        /// How long it took, those before it not counted, in seconds.
        seconds: f64,
    },
    /// A judge did not end with it, and did without it right after.
    TimedOut {
        /// Which.
        judge: String,
        /// How long it was waited for, in seconds.
        seconds: f64,
    },
    /// Nothing can be said: what a judge did with it, it did without it too. It is to be judged again.
    Undecided {
        /// Why.
        reason: String,
    },
    /// Judges came by it, and none noticed.
    Survived,
    /// No judge came by it.
    Unreached,
    /// A person says that what it does is right as well, so no judge was asked.
    Equivalent {
        /// Why.
        reason: String,
    },
}

impl Verdict {
    /// Whether it need not be judged again.
    #[must_use]
    pub fn is_final(&self) -> bool {
        !matches!(self, Verdict::Undecided { .. })
    }

    /// What a person is to know of it beside the mutant.
    fn remark(&self) -> String {
        match self {
            Verdict::TimedOut { judge, seconds } => format!(": {seconds:.0} s of {judge}"),
            Verdict::Undecided { reason } => format!(": {reason}"),
            _ => String::new(),
        }
    }
}

/// A mutant that was judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Judged {
    /// Its number, by which it is switched on.
    pub number: u32,
    /// What it is.
    #[serde(flatten)]
    pub mutant: Mutant,
    /// What became of it.
    pub verdict: Verdict,
}

/// Everything that is known of mutants of the same sources.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Results {
    /// Tells these sources from others.
    pub sources: String,
    /// So many lives were there to survive.
    pub lives: u64,
    /// How many mutants there are that compile, by crates.
    pub viable: BTreeMap<String, usize>,
    /// How many do not.
    pub not_viable: BTreeMap<String, usize>,
    /// How many were left out with these, and would compile perhaps.
    pub beside: BTreeMap<String, usize>,
    /// Judges that fail without a mutant, and how: they judge nothing.
    pub left_out: BTreeMap<String, String>,
    /// Those that were judged, by [`Mutant::key`].
    pub judged: BTreeMap<String, Judged>,
}

impl Results {
    /// Reads what earlier sittings found, if there were any. It must be of the same sources and as many lives.
    ///
    /// # Errors
    /// It is not, or cannot be read.
    pub fn open(path: &Path, sources: &str, lives: u64) -> anyhow::Result<Results> {
        let name = path.display();
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => {
                return Ok(Results { sources: sources.to_owned(), lives, ..Results::default() });
            }
            Err(error) => return Err(error).with_context(|| format!("{name}: cannot be read")),
        };
        let results: Results =
            serde_json::from_slice(&text).with_context(|| format!("{name}: cannot be understood"))?;
        ensure!(
            results.sources == sources && results.lives == lives,
            "{name}: has results of other sources, or of {} lives and not {lives}; name another file, or remove it",
            results.lives
        );
        Ok(results)
    }

    /// Writes all of it; who is killed meanwhile leaves what was there before.
    ///
    /// # Errors
    /// The file system.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        write_whole(path, &(serde_json::to_string_pretty(self)? + "\n"))
    }
}

/// Writes all of a file, or leaves what is there.
pub(crate) fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    let cannot = || format!("{}: cannot be written", path.display());
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).with_context(cannot)?;
    }
    let beside = path.with_extension("new");
    fs::write(&beside, text).with_context(cannot)?;
    fs::rename(&beside, path).with_context(cannot)
}

/// The bounds within which a share lies with 95 % confidence, of which `some` of `all` were seen (Wilson, "Probable inference,
/// the law of succession, and statistical inference", 1927). Unlike the plain ones they hold for few, and near 0 and 1.
#[must_use]
pub fn interval(some: usize, all: usize) -> (f64, f64) {
    const Z: f64 = 1.959_964;
    if all == 0 {
        return (0.0, 1.0);
    }
    let (n, share) = (all as f64, some as f64 / all as f64);
    let middle = share + Z * Z / (2.0 * n);
    let half = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + Z * Z / n;
    (((middle - half) / scale).max(0.0), ((middle + half) / scale).min(1.0))
}

/// What became of a sample.
#[derive(Debug)]
pub struct Summary<'a> {
    /// All that is known.
    pub results: &'a Results,
    /// The crates that were drawn from.
    pub packages: &'a [String],
    /// The keys of those that were drawn.
    pub drawn: &'a [String],
    /// By which seed.
    pub seed: u64,
}

impl Summary<'_> {
    fn judged(&self) -> impl Iterator<Item = &Judged> {
        self.drawn.iter().filter_map(|key| self.results.judged.get(key))
    }

    fn write_row(&self, f: &mut fmt::Formatter, name: &str, is_of: impl Fn(&Judged) -> bool) -> fmt::Result {
        let (mut killed, mut timed_out, mut survived, mut unreached) = (0, 0, 0, 0);
        let (mut undecided, mut equivalent) = (0, 0);
        for one in self.judged().filter(|one| is_of(one)) {
            match one.verdict {
                Verdict::Killed { .. } => killed += 1,
                Verdict::TimedOut { .. } => timed_out += 1,
                Verdict::Survived => survived += 1,
                Verdict::Unreached => unreached += 1,
                Verdict::Undecided { .. } => undecided += 1,
                Verdict::Equivalent { .. } => equivalent += 1,
            }
        }
        let caught = killed + timed_out;
        let all = caught + survived + unreached;
        let (low, high) = interval(caught, all);
        let share =
            if all == 0 { "-".to_owned() } else { format!("{:.1} %", 100.0 * caught as f64 / all as f64) };
        writeln!(
            f,
            "{name:<10} {all:>7} {killed:>7} {timed_out:>7} {survived:>9} {unreached:>10} {undecided:>10} \
             {equivalent:>11} {share:>9}   {:.1} % to {:.1} %",
            100.0 * low,
            100.0 * high
        )
    }

    fn write_list(
        &self,
        f: &mut fmt::Formatter,
        title: &str,
        is_meant: impl Fn(&Verdict) -> bool,
    ) -> fmt::Result {
        let mut of: Vec<&Judged> = self.judged().filter(|one| is_meant(&one.verdict)).collect();
        of.sort_by_key(|one| (&one.mutant.file, one.mutant.line, one.mutant.column));
        if !of.is_empty() {
            writeln!(f, "\n{title}")?;
        }
        for Judged { number, mutant, verdict } in of {
            let Mutant { file, line, column, function, operator, original, mutated, .. } = mutant;
            let (file, remark) = (file.display(), verdict.remark());
            writeln!(f, "{file}:{line}:{column} in {function}: {operator} (mutant {number}){remark}")?;
            writeln!(f, "    {original}")?;
            if !mutated.is_empty() {
                writeln!(f, "    {mutated}")?;
            }
        }
        Ok(())
    }
}

impl Display for Summary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        for package in self.packages {
            let of = |numbers: &BTreeMap<String, usize>| numbers.get(package).copied().unwrap_or(0);
            let Results { viable, not_viable, beside, .. } = self.results;
            let (viable, not_viable, beside) = (of(viable), of(not_viable), of(beside));
            writeln!(
                f,
                "{package}: {viable} viable mutants; {not_viable} more do not compile, {beside} were left out with these"
            )?;
        }
        let judged = self.judged().filter(|one| one.verdict.is_final()).count();
        let drawn = self.drawn.len();
        writeln!(
            f,
            "{drawn} drawn by seed {}, {judged} of them judged or known as equivalent; {} lives",
            self.seed, self.results.lives
        )?;
        writeln!(
            f,
            "\ncrate       judged  killed  no end  survived  unreached  undecided  equivalent    caught   95 % interval"
        )?;
        for (package, _) in SCOPE.iter().filter(|(name, _)| self.packages.iter().any(|one| one == name)) {
            self.write_row(f, package, |one| one.mutant.package == *package)?;
        }
        self.write_row(f, "all", |_| true)?;

        let mut kills: BTreeMap<&str, usize> = BTreeMap::new();
        for one in self.judged() {
            if let Verdict::Killed { judge, .. } = &one.verdict {
                // Which test it was, or which seeds, stands with the mutant.
                let kind = judge.rsplit_once(": ").map_or(judge.as_str(), |(kind, _)| kind);
                *kills.entry(kind).or_default() += 1;
            }
        }
        writeln!(f, "\nkilled by")?;
        for (judge, number) in kills {
            writeln!(f, "{number:>7}  {judge}")?;
        }
        self.write_list(f, "survivors", |verdict| *verdict == Verdict::Survived)?;
        self.write_list(f, "unreached", |verdict| *verdict == Verdict::Unreached)?;
        self.write_list(f, "no end", |verdict| matches!(verdict, Verdict::TimedOut { .. }))?;
        self.write_list(f, "undecided: to be judged again", |verdict| !verdict.is_final())?;
        for (judge, why) in &self.results.left_out {
            writeln!(f, "\n{judge}: fails without a mutant, and judges nothing: {why}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(number: u32, package: &str, verdict: Verdict) -> Judged {
        let text = |what: &str| format!("{what} {number}");
        let mutant = Mutant {
            package: package.to_owned(),
            file: format!("crates/{package}/src/a.rs").into(),
            line: 10 + number as usize,
            column: 5,
            nth: 0,
            function: text("function"),
            operator: text("operator"),
            original: text("original"),
            mutated: text("mutated"),
            occurrence: 0,
        };
        Judged { number, mutant, verdict }
    }

    fn results() -> Results {
        let killed = |judge: &str| Verdict::Killed {
            judge: judge.to_owned(),
            evidence: "seed 3".to_owned(),
            seconds: 1.5,
        };
        let all = [
            judged(1, "pg", killed("pg: unit tests: group::tests::it_serves")),
            judged(2, "pg", Verdict::Survived),
            judged(3, "store", killed("clusters: lives 0 to 24")),
            judged(4, "store", Verdict::Unreached),
            judged(5, "store", Verdict::Survived),
            judged(6, "pg", Verdict::Equivalent { reason: "a limit that is never reached".to_owned() }),
            judged(7, "pg", Verdict::TimedOut { judge: "clusters: lives 0 to 24".to_owned(), seconds: 40.0 }),
            judged(8, "pg", Verdict::Undecided { reason: "the machine was slow".to_owned() }),
        ];
        let judged = all.into_iter().map(|one| (one.mutant.key(), one)).collect();
        let viable = BTreeMap::from([("pg".to_owned(), 20), ("store".to_owned(), 30)]);
        let beside = BTreeMap::from([("pg".to_owned(), 3)]);
        Results { sources: "abc".to_owned(), lives: 7, viable, beside, judged, ..Results::default() }
    }

    #[test]
    fn the_interval_is_that_of_the_paper() {
        let is_near = |(low, high): (f64, f64), wanted: (f64, f64)| {
            assert!((low - wanted.0).abs() < 5e-4 && (high - wanted.1).abs() < 5e-4, "{low} to {high}");
        };
        // As statistics packages give it for 81 of 263, and for all of 20.
        is_near(interval(81, 263), (0.2553, 0.3662));
        is_near(interval(20, 20), (0.8389, 1.0));
        is_near(interval(0, 20), (0.0, 0.1611));
        assert_eq!(interval(0, 0), (0.0, 1.0));
    }

    #[test]
    fn what_was_saved_is_gone_on_with_and_that_of_other_sources_is_not() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("folder/results.json");
        assert_eq!(Results::open(&path, "abc", 7).unwrap().judged, BTreeMap::new());
        results().save(&path).unwrap();
        assert_eq!(Results::open(&path, "abc", 7).unwrap(), results());
        assert!(Results::open(&path, "abd", 7).is_err());
        assert!(Results::open(&path, "abc", 8).is_err());
    }

    #[test]
    fn a_summary_counts_what_was_drawn_alone_and_lists_what_nobody_noticed() {
        let results = results();
        let drawn: Vec<String> = results.judged.keys().filter(|key| !key.contains(":15:")).cloned().collect();
        let drawn = [&drawn[..], &["not yet".to_owned()]].concat();
        let packages = ["pg".to_owned(), "store".to_owned()];
        let text = Summary { results: &results, packages: &packages, drawn: &drawn, seed: 9 }.to_string();
        let row = |name: &str| -> Vec<String> {
            let line = text.lines().find(|line| line.starts_with(name) && line.contains(" to ")).unwrap();
            line.split_whitespace().take(8).map(str::to_owned).collect()
        };
        // Judged, killed, without an end, survived, unreached, undecided, equivalent.
        assert_eq!(row("pg "), ["pg", "3", "1", "1", "1", "0", "1", "1"]);
        assert_eq!(row("store "), ["store", "2", "1", "0", "0", "1", "0", "0"]);
        assert_eq!(row("all "), ["all", "5", "2", "1", "1", "1", "1", "1"]);
        assert!(text.contains(" 60.0 %   23.1 % to 88.2 %"), "3 of 5 that are decided: {text}");
        assert!(
            text.contains("8 drawn by seed 9, 6 of them judged or known as equivalent; 7 lives"),
            "{text}"
        );
        let viable = "pg: 20 viable mutants; 0 more do not compile, 3 were left out with these\n";
        assert!(text.contains(viable), "{text}");
        assert!(text.contains("(mutant 7): 40 s of clusters: lives 0 to 24\n"), "{text}");
        assert!(text.contains("(mutant 8): the machine was slow\n"), "{text}");
        assert!(text.contains("1  pg: unit tests\n") && text.contains("1  clusters\n"), "{text}");
        assert!(text.contains(
            "crates/pg/src/a.rs:12:5 in function 2: operator 2 (mutant 2)\n    original 2\n    mutated 2"
        ));
        assert!(text.contains("crates/store/src/a.rs:14:5"));
        assert!(!["original 1", "original 5", "original 6"].iter().any(|one| text.contains(one)), "{text}");
    }
}
