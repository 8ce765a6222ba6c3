//! What is fed, by who says it: strangers and peers over a connection, users by texts and files, drives.

mod choices;
mod handshake;
mod keys;
mod messages;
mod nbd;
mod nbd_client;
mod opening;
mod osd;
mod pieces;
mod records;
mod replies;
mod texts;
mod vhost;

pub use texts::reads_back;

use crate::driver::Target;
use base::hash::mix;

/// Bit of an input's first byte: what stands for bytes that nobody can guess is put right before it is looked at.
const SEALED: u8 = 1;

/// All of them.
pub static TARGETS: [Target; 15] = [
    Target {
        name: "wire",
        about: "messages between clients and OSDs, and among OSDs",
        run: messages::run,
        examples: messages::examples,
        expected: messages::expected,
        inputs: 60_000,
        bytes_max: 24 << 10,
        memory_bytes_max: 1 << 20,
    },
    Target {
        name: "osd",
        about: "an OSD, told anything by clients and other OSDs",
        run: osd::run,
        examples: osd::examples,
        expected: osd::expected,
        inputs: 600,
        bytes_max: 800,
        memory_bytes_max: 64 << 20,
    },
    Target {
        name: "client",
        about: "a client, answered anything by OSDs",
        run: replies::run,
        examples: replies::examples,
        expected: replies::expected,
        inputs: 20_000,
        bytes_max: 400,
        memory_bytes_max: 64 << 20,
    },
    Target {
        name: "handshake",
        about: "both ends of a handshake and of the encryption behind it, changed on their way",
        run: handshake::run,
        examples: handshake::examples,
        expected: handshake::expected,
        inputs: 6000,
        bytes_max: 300,
        memory_bytes_max: 4 << 20,
    },
    Target {
        name: "tls_records",
        about: "encrypted records, changed on their way or sealed by somebody who has the keys",
        run: handshake::run_records,
        examples: handshake::examples_of_records,
        expected: handshake::expected_of_records,
        inputs: 20_000,
        bytes_max: 300,
        memory_bytes_max: 1 << 20,
    },
    Target {
        name: "nbd_server",
        about: "an NBD connection, from the greeting on",
        run: nbd::run,
        examples: nbd::examples,
        expected: nbd::expected,
        inputs: 60_000,
        bytes_max: 2 << 10,
        memory_bytes_max: 8 << 20,
    },
    Target {
        name: "nbd_client",
        about: "what an NBD server says to a client",
        run: nbd_client::run,
        examples: nbd_client::examples,
        expected: nbd_client::expected,
        inputs: 60_000,
        bytes_max: 2 << 10,
        memory_bytes_max: 1 << 20,
    },
    Target {
        name: "vhost_rings",
        about: "descriptors and requests that a guest puts into its memory",
        run: vhost::run,
        examples: vhost::examples,
        expected: vhost::expected,
        inputs: 60_000,
        bytes_max: 2 << 10,
        memory_bytes_max: 64 << 10,
    },
    Target {
        name: "store_batch",
        about: "the header of a batch on a drive, and its records",
        run: pieces::batch,
        examples: pieces::batches,
        expected: pieces::expected_of_batches,
        inputs: 60_000,
        bytes_max: 5 << 10,
        memory_bytes_max: 64 << 10,
    },
    Target {
        name: "checkpoint_page",
        about: "an object's page of a checkpoint, and changes of that object",
        run: pieces::page,
        examples: pieces::pages,
        expected: pieces::expected_of_pages,
        inputs: 60_000,
        bytes_max: 2 << 10,
        memory_bytes_max: 128 << 10,
    },
    Target {
        name: "superblock",
        about: "the two superblocks of a drive",
        run: pieces::superblock,
        examples: pieces::superblocks,
        expected: pieces::expected_of_superblocks,
        inputs: 60_000,
        bytes_max: 300,
        memory_bytes_max: 64 << 10,
    },
    Target {
        name: "store_open",
        about: "a whole small drive: superblocks, checkpoint and log, with fields that say something else",
        run: opening::run,
        examples: opening::examples,
        expected: opening::expected,
        inputs: 8000,
        bytes_max: 200,
        memory_bytes_max: 64 << 20,
    },
    Target {
        name: "key",
        about: "the file of a secret key",
        run: keys::run,
        examples: keys::examples,
        expected: keys::expected,
        inputs: 20_000,
        bytes_max: 1 << 10,
        memory_bytes_max: 64 << 10,
    },
    Target {
        name: "texts",
        about: "what users write: keys, addresses, sizes, limits, words",
        run: texts::run,
        examples: texts::examples,
        expected: texts::expected,
        inputs: 60_000,
        bytes_max: 400,
        memory_bytes_max: 64 << 10,
    },
    Target {
        name: "records",
        about: "what is kept in a registry, asked of a node, and told the manager",
        run: records::run,
        examples: records::examples,
        expected: records::expected,
        inputs: 60_000,
        bytes_max: 2 << 10,
        memory_bytes_max: 1 << 20,
    },
];

/// The target of that name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Target> {
    TARGETS.iter().find(|target| target.name == name)
}

/// An input that says step by step what is done. Behind its end there are zeros.
struct Script<'a> {
    rest: &'a [u8],
    drawn: u64,
}

impl<'a> Script<'a> {
    fn new(bytes: &'a [u8]) -> Script<'a> {
        Script { rest: bytes, drawn: 0 }
    }

    /// The next byte, if there is one.
    fn step(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn byte(&mut self) -> u8 {
        self.step().unwrap_or(0)
    }

    fn number(&mut self) -> u64 {
        u64::from(u16::from_le_bytes([self.byte(), self.byte()]))
    }

    /// Some bytes, fewer at its end.
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.rest.split_at(count.min(self.rest.len()));
        self.rest = rest;
        bytes
    }

    /// How many blocks a message that is made up may have: few, and as many as there can be now and then.
    fn blocks_max(&mut self) -> usize {
        if self.byte() < 0xf0 { 3 } else { wire::BLOCKS_PER_MESSAGE_MAX }
    }

    /// 64 bits that follow from the next byte and its place.
    fn draw(&mut self) -> u64 {
        self.drawn += 1;
        mix(self.drawn << 8 | u64::from(self.byte()))
    }
}

/// The name of a variant without fields, for as long as the program runs: for few of them.
fn leaked_name(variant: impl std::fmt::Debug) -> &'static str {
    format!("{variant:?}").leak()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::{prove, run_input};
    use crate::outcomes::Outcomes;
    use std::collections::BTreeSet;

    // By mutations alone.
    macro_rules! each_reaches_what_is_expected {
        ($($name:ident)*) => {
            const TESTED: &[&str] = &[$(stringify!($name)),*];
            $(#[test] fn $name() { prove(find(stringify!($name)).expect("there is such a target")); })*
        };
    }

    each_reaches_what_is_expected! {
        wire osd client handshake tls_records nbd_server nbd_client vhost_rings store_batch checkpoint_page superblock
        store_open key texts records
    }

    #[test]
    fn every_target_has_a_name_of_its_own_and_a_test() {
        let names: BTreeSet<&str> = TARGETS.iter().map(|target| target.name).collect();
        assert_eq!(names.len(), TARGETS.len());
        assert_eq!(names, TESTED.iter().copied().collect::<BTreeSet<&str>>());
        assert!(find("wires").is_none());
    }

    #[test]
    fn every_example_is_within_bounds_and_does_no_harm() {
        for target in &TARGETS {
            let examples = (target.examples)();
            assert!(!examples.is_empty());
            for example in examples {
                assert!(example.len() <= target.bytes_max, "{} bytes for {}", example.len(), target.name);
                run_input(target, &example, &mut Outcomes::default())
                    .unwrap_or_else(|reason| panic!("{}: {reason}: {example:?}", target.name));
            }
        }
    }
}
