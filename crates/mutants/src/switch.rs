//! The switch of a mutated tree: which of its mutants is on. It stands in `base` there; here it is only checked like all else.

use std::fs::File;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The variable of the environment that names the mutant which is on, by its number. None is without it.
pub const MUTANT: &str = "MILLPOND_MUTANT";
/// The variable that names a file, to which is appended what mutants execution comes by, a number a line. None is on then.
pub const REACHED: &str = "MILLPOND_MUTANTS_REACHED";
/// Numbers of mutants are below this, and above 0.
pub const MUTANTS_MAX: u32 = 1 << 16;

/// No mutant is on, and those that are come by are written down.
const WATCHING: u32 = MUTANTS_MAX;
/// The environment was not asked yet.
const UNREAD: u32 = MUTANTS_MAX + 1;

static SELECTED: AtomicU32 = AtomicU32::new(UNREAD);
static SEEN: [AtomicBool; MUTANTS_MAX as usize] = [const { AtomicBool::new(false) }; MUTANTS_MAX as usize];
static FILE: OnceLock<File> = OnceLock::new();

/// Whether this mutant is on.
#[inline(always)]
#[must_use]
pub fn is(mutant: u32) -> bool {
    let selected = SELECTED.load(Ordering::Relaxed);
    if selected < WATCHING { selected == mutant } else { is_first_or_watched(mutant) }
}

#[cold]
#[inline(never)]
fn is_first_or_watched(mutant: u32) -> bool {
    if SELECTED.load(Ordering::Relaxed) == UNREAD {
        SELECTED.store(selected(), Ordering::Relaxed);
        return is(mutant);
    }
    let seen = &SEEN[mutant as usize];
    // Reading costs less by far, and nearly always is all.
    if !seen.load(Ordering::Relaxed) && !seen.swap(true, Ordering::Relaxed) {
        let mut file = FILE.get_or_init(|| {
            let path = std::env::var_os(REACHED).expect("it is watched because there is one");
            File::options().append(true).create(true).open(path).expect("what is reached can be written down")
        });
        // One write for each, as other threads and processes append to it too.
        file.write_all(format!("{mutant}\n").as_bytes()).expect("what is reached can be written down");
    }
    false
}

fn selected() -> u32 {
    if std::env::var_os(REACHED).is_some() {
        return WATCHING;
    }
    std::env::var(MUTANT).map_or(0, |number| number.parse().expect("a mutant has a number"))
}
