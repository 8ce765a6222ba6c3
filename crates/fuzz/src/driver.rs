//! Runs a target: inputs of a round, each from the round's seed and what came of those before it.

use crate::mutate::mutate;
use crate::outcomes::{Outcome, Outcomes};
use ring::counting::bytes_held;
use sim::random::Random;
use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The most inputs of a round. Rounds know nothing of each other: so each is run again by its own seed alone.
pub const ROUND_INPUTS: u64 = 1 << 16;
/// No input may take longer, on a busy machine either.
pub const TIME_LIMIT: Duration = Duration::from_secs(10);
/// The most inputs that are kept beside the examples, because they came to what none did before.
const KEPT_MAX: usize = 1024;

/// Something that takes bytes, whatever they are.
#[derive(Debug)]
pub struct Target {
    /// What people call it.
    pub name: &'static str,
    /// What is fed, in a line.
    pub about: &'static str,
    /// Takes one input. The same bytes come to the same, or nearly: keys that are drawn anew differ.
    pub run: fn(&[u8], &mut Outcomes),
    /// Inputs that are taken for what they are.
    pub examples: fn() -> Vec<Vec<u8>>,
    /// What must come of [`Self::inputs`], whatever the seed.
    pub expected: fn() -> Vec<Outcome>,
    /// How many inputs suffice for that.
    pub inputs: u64,
    /// The most bytes of an input.
    pub bytes_max: usize,
    /// The most memory that one input may have it hold, in bytes.
    pub memory_bytes_max: usize,
}

/// What an input was found to do.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The target.
    pub target: &'static str,
    /// The seed of the round.
    pub seed: u64,
    /// Which of the round's inputs it was, from 0 on.
    pub number: u64,
    /// It.
    pub input: Vec<u8>,
    /// What it did.
    pub reason: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { target, seed, number, input, reason } = self;
        let bytes = input.len();
        write!(formatter, "{target}: {reason}, with input {number} of seed {seed}, which has {bytes} bytes")
    }
}

/// Rounds that several take, one after the other each: what they come to is the same whoever runs which.
#[derive(Debug)]
pub struct Rounds {
    first_seed: u64,
    inputs: Option<u64>,
    /// How many were taken.
    taken: AtomicU64,
}

impl Rounds {
    /// Rounds from that seed on, of so many inputs together, or without an end.
    #[must_use]
    pub fn new(first_seed: u64, inputs: Option<u64>) -> Rounds {
        Rounds { first_seed, inputs, taken: AtomicU64::new(0) }
    }

    /// The next round's seed, and how many inputs it has. `None` when there are no more.
    pub fn take(&self) -> Option<(u64, u64)> {
        let number = self.taken.fetch_add(1, Ordering::Relaxed);
        let before = number.saturating_mul(ROUND_INPUTS);
        let left = self.inputs.map_or(ROUND_INPUTS, |inputs| inputs.saturating_sub(before));
        (left > 0).then(|| (self.first_seed.wrapping_add(number), left.min(ROUND_INPUTS)))
    }
}

/// Makes the inputs of one round.
#[derive(Debug)]
pub struct Round<'a> {
    target: &'a Target,
    random: Random,
    examples: Vec<Vec<u8>>,
    kept: Vec<Vec<u8>>,
    input: Vec<u8>,
}

impl<'a> Round<'a> {
    /// The round of that seed.
    #[must_use]
    pub fn new(target: &'a Target, seed: u64) -> Round<'a> {
        let (random, examples) = (Random::new(seed), (target.examples)());
        Round { target, random, examples, kept: Vec::new(), input: Vec::new() }
    }

    /// The next input.
    ///
    /// # Panics
    /// If the target has no example.
    pub fn next_input(&mut self) -> &[u8] {
        let Round { target, random, examples, kept, input } = self;
        input.clone_from(draw(random, examples, kept));
        let other = draw(random, examples, kept);
        mutate(random, input, other, target.bytes_max);
        input
    }

    /// The last input came to something new: others like it may come to more.
    fn keep(&mut self) {
        if self.kept.len() < KEPT_MAX {
            self.kept.push(self.input.clone());
        }
    }
}

/// One of the examples, or of those that were kept.
fn draw<'a>(random: &mut Random, examples: &'a [Vec<u8>], kept: &'a [Vec<u8>]) -> &'a Vec<u8> {
    let is_kept = !kept.is_empty() && random.one_in(4);
    let from = if is_kept { kept } else { examples };
    &from[random.index(from.len())]
}

/// Runs up to so many inputs of the round of that seed, and answers how many. Before each, `before` is told its number and
/// the input, and whether to go on is its to say.
///
/// # Errors
/// The first failure.
pub fn run_round(
    target: &Target,
    seed: u64,
    inputs: u64,
    seen: &mut Outcomes,
    mut before: impl FnMut(u64, &[u8]) -> bool,
) -> Result<u64, Failure> {
    let mut round = Round::new(target, seed);
    seen.begin_round();
    for number in 0..inputs {
        let input = round.next_input();
        if !before(number, input) {
            return Ok(number);
        }
        run_input(target, input, seen).map_err(|reason| {
            let (target, input) = (target.name, input.to_vec());
            Failure { target, seed, number, input, reason }
        })?;
        if seen.take_news() {
            round.keep();
        }
    }
    Ok(inputs)
}

/// Runs as many inputs as suffice for what is expected of a target, from seeds that are always the same: for a test. More if
/// `MILLPOND_FUZZ_INPUTS` says so, for targets that `make fuzz` has not: those beside the code that they feed.
///
/// # Panics
/// With the first failure, or with what was not reached.
pub fn prove(target: &Target) {
    let more = std::env::var("MILLPOND_FUZZ_INPUTS").ok();
    let more: u64 = more.map_or(0, |text| text.parse().expect("MILLPOND_FUZZ_INPUTS is a number"));
    let (mut seen, mut seed, mut left) = (Outcomes::default(), 1, target.inputs.max(more));
    while left > 0 {
        let count = left.min(ROUND_INPUTS);
        if let Err(failure) = run_round(target, seed, count, &mut seen, |_, _| true) {
            panic!("{failure}: {:?}", failure.input);
        }
        (seed, left) = (seed + 1, left - count);
    }
    println!("{}\n{seen}", target.name);
    let missing = seen.missing(&(target.expected)());
    assert!(missing.is_empty(), "{} did not reach {missing:?}", target.name);
}

/// The input of that number of a round, for when it cannot be had from who runs it.
///
/// # Errors
/// The failure of one before it.
pub fn input_of(target: &Target, seed: u64, number: u64) -> Result<Vec<u8>, Failure> {
    let mut found = Vec::new();
    run_round(target, seed, number + 1, &mut Outcomes::default(), |at, input| {
        if at == number {
            found = input.to_vec();
        }
        at < number
    })?;
    Ok(found)
}

/// Has a target take an input.
///
/// # Errors
/// What it did that nothing may do, in words.
pub fn run_input(target: &Target, input: &[u8], seen: &mut Outcomes) -> Result<(), String> {
    let began = Instant::now();
    let run = || catch_unwind(AssertUnwindSafe(|| (target.run)(input, seen)));
    let (result, bytes) = bytes_held(run);
    let took = began.elapsed();
    result.map_err(|panic| format!("it panicked ({})", text_of(&*panic)))?;
    if bytes > target.memory_bytes_max {
        return Err(format!("it held {bytes} bytes, and may hold {}", target.memory_bytes_max));
    }
    if took > TIME_LIMIT {
        return Err(format!("it took {took:?}"));
    }
    Ok(())
}

fn text_of(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word")
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::crc32c;

    /// Not the plain checksum: bytes that are all ones have that by themselves.
    fn checksum_of(rest: &[u8]) -> u32 {
        crc32c(rest) ^ 0x5eed
    }

    /// What has a checksum of the rest in front, a number of bytes, and as many: with a bug where that number is large.
    fn read(bytes: &[u8], seen: &mut Outcomes) {
        let Some((checksum, rest)) = bytes.split_first_chunk() else { return };
        if u32::from_le_bytes(*checksum) != checksum_of(rest) {
            return seen.note("refused", "checksum");
        }
        let Some((count, rest)) = rest.split_first_chunk() else { return };
        match u32::from_le_bytes(*count) {
            count if count as usize == rest.len() => seen.note("read", "all"),
            0x8000_0000.. => panic!("planted"),
            _ => seen.note("refused", "count"),
        }
    }

    fn sealed(input: &[u8], seen: &mut Outcomes) {
        let Some((_, bytes)) = input.split_first() else { return };
        let mut bytes = bytes.to_vec();
        if let Some((checksum, rest)) = bytes.split_first_chunk_mut() {
            *checksum = checksum_of(rest).to_le_bytes();
        }
        read(&bytes, seen);
    }

    fn as_it_is(input: &[u8], seen: &mut Outcomes) {
        read(input.get(1..).unwrap_or_default(), seen);
    }

    fn example() -> Vec<Vec<u8>> {
        let rest = [&8u32.to_le_bytes()[..], &[7; 8]].concat();
        vec![[&[1][..], &checksum_of(&rest).to_le_bytes(), &rest].concat()]
    }

    const PLANTED: Target = Target {
        name: "planted",
        about: "a bug behind a checksum",
        run: sealed,
        examples: example,
        expected: Vec::new,
        inputs: 1000,
        bytes_max: 100,
        memory_bytes_max: 1 << 20,
    };

    fn run(target: &Target, seed: u64, inputs: u64) -> (Result<u64, Failure>, Outcomes) {
        let mut seen = Outcomes::default();
        (run_round(target, seed, inputs, &mut seen, |_, _| true), seen)
    }

    #[test]
    fn what_is_behind_a_checksum_is_found_where_that_is_put_right_and_nowhere_else() {
        let mut all = Outcomes::default();
        for seed in 0..8 {
            let failure = run_round(&PLANTED, seed, 2000, &mut all, |_, _| true).unwrap_err();
            assert!(failure.reason.contains("planted"), "{failure}");
        }
        assert_eq!(all.missing(&[("read", "all"), ("refused", "count")]), []);
        assert_eq!(all.times(("refused", "checksum")), 0);
        let (found, seen) = run(&Target { run: as_it_is, ..PLANTED }, 1, 20_000);
        assert_eq!(found.unwrap(), 20_000);
        assert!(seen.times(("refused", "checksum")) > 10_000);
    }

    #[test]
    fn an_input_is_made_again_from_its_seed_and_its_number() {
        let failure = run(&PLANTED, 5, 2000).0.unwrap_err();
        assert_eq!(input_of(&PLANTED, failure.seed, failure.number).unwrap(), failure.input);
        assert_eq!(run(&PLANTED, 5, 2000).0.unwrap_err().number, failure.number);
        assert!(run_input(&PLANTED, &failure.input, &mut Outcomes::default()).is_err());
        assert!(failure.to_string().contains(&format!("input {} of seed 5", failure.number)));
    }

    #[test]
    fn who_holds_too_much_memory_is_found() {
        fn holds(input: &[u8], _: &mut Outcomes) {
            let bytes = if input.len() > 20 { 2 << 20 } else { 1 << 10 };
            std::hint::black_box(vec![7u8; bytes]);
        }
        let failure = run(&Target { run: holds, ..PLANTED }, 1, 1000).0.unwrap_err();
        assert!(failure.reason.contains("may hold 1048576") && failure.input.len() > 20, "{failure}");
        let modest = Target { run: holds, bytes_max: 20, ..PLANTED };
        assert_eq!(run(&modest, 1, 1000).0.unwrap(), 1000);
    }

    #[test]
    fn what_came_to_something_new_is_gone_on_from() {
        // Each further step takes one of a few bytes behind those of the steps before.
        fn steps(input: &[u8], seen: &mut Outcomes) {
            const STEPS: [&str; 4] = ["none", "one", "two", "three"];
            let count = input.iter().zip(20..23).take_while(|(byte, wanted)| **byte / 8 == *wanted).count();
            seen.note("steps", STEPS[count]);
        }
        let target = Target { run: steps, examples: || vec![vec![0; 4]], ..PLANTED };
        let (found, seen) = run(&target, 1, ROUND_INPUTS);
        assert_eq!(found.unwrap(), ROUND_INPUTS);
        assert_eq!(seen.missing(&[("steps", "one"), ("steps", "two"), ("steps", "three")]), []);
    }

    #[test]
    fn so_many_inputs_are_run_in_all_and_come_to_the_same_however_many_run_them() {
        const INPUTS: u64 = 2 * ROUND_INPUTS + 100;
        let quiet = Target { run: as_it_is, ..PLANTED };
        let run_by = |workers: usize| {
            let rounds = Rounds::new(7, Some(INPUTS));
            let work = || {
                let (mut inputs, mut seen) = (0, Outcomes::default());
                while let Some((seed, count)) = rounds.take() {
                    inputs += run_round(&quiet, seed, count, &mut seen, |_, _| true).unwrap();
                }
                (inputs, seen)
            };
            std::thread::scope(|scope| {
                let running: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
                let (mut inputs, mut seen) = (0, Outcomes::default());
                for worker in running {
                    let (more, of_one) = worker.join().unwrap();
                    inputs += more;
                    seen.add(&of_one);
                }
                (inputs, seen.to_string())
            })
        };
        let alone = run_by(1);
        assert_eq!(alone.0, INPUTS);
        assert_eq!(run_by(3), alone);
        let endless = Rounds::new(u64::MAX, None);
        assert_eq!([endless.take(), endless.take()], [u64::MAX, 0].map(|seed| Some((seed, ROUND_INPUTS))));
    }

    #[test]
    fn whoever_is_told_of_inputs_can_end_a_round() {
        let mut numbers = Vec::new();
        let before = |number, input: &[u8]| {
            numbers.push(number);
            assert!(input.len() <= 100);
            number < 3
        };
        let quiet = Target { run: as_it_is, ..PLANTED };
        let ran = run_round(&quiet, 1, 100, &mut Outcomes::default(), before).unwrap();
        assert_eq!((ran, numbers), (3, vec![0, 1, 2, 3]));
    }
}
