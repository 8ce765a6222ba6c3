//! Inputs whose first byte says what the rest is taken for.

use crate::outcomes::{Outcome, Outcomes};

/// What bytes are taken for, what takes them for it if they are that, and an example.
pub(super) type Choice = (&'static str, fn(&[u8]) -> bool, &'static str);

pub(super) fn run(choices: &[Choice], input: &[u8], seen: &mut Outcomes) {
    let Some((choice, bytes)) = input.split_first() else { return };
    let (name, read, _) = choices[usize::from(*choice) % choices.len()];
    seen.note(name, if read(bytes) { "read" } else { "refused" });
}

pub(super) fn examples(choices: &[Choice]) -> Vec<Vec<u8>> {
    let with_number = (0..).zip(choices);
    with_number.map(|(number, (.., example))| [&[number][..], example.as_bytes()].concat()).collect()
}

pub(super) fn expected(choices: &[Choice]) -> Vec<Outcome> {
    choices.iter().flat_map(|(name, ..)| [(*name, "read"), (*name, "refused")]).collect()
}

#[cfg(test)]
pub(super) fn assert_every_example_is_read(choices: &[Choice]) {
    for (name, read, example) in choices {
        assert!(read(example.as_bytes()), "{name}: {example}");
    }
}
