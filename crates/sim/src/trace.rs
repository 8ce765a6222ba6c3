//! What happened in a simulation, as a hash that two runs of one seed must share, and as lines to read.

use base::hash::mix;

/// Collects the events of one run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Trace {
    hash: u64,
    events: u64,
    print: Option<fn(&str)>,
}

impl Trace {
    /// A trace that gives every event to `print` as a line, if there is one.
    #[must_use]
    pub fn new(print: Option<fn(&str)>) -> Trace {
        Trace { hash: 0, events: 0, print }
    }

    /// Notes an event: what it is, and the numbers that tell it from others.
    pub fn note(&mut self, what: &str, numbers: &[u64]) {
        self.events += 1;
        for byte in what.bytes() {
            self.hash = (self.hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        for number in numbers {
            self.hash = mix(self.hash.rotate_left(17) ^ *number);
        }
        if let Some(print) = self.print {
            print(&format!("{:>7} {what} {numbers:?}", self.events));
        }
    }

    /// Notes an event without a line for the reader: for what happens too often to be read.
    pub fn count(&mut self, what: u64, number: u64) {
        self.events += 1;
        self.hash = mix(self.hash.rotate_left(17) ^ what.rotate_left(56) ^ number);
    }

    /// Whether somebody reads the lines.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.print.is_some()
    }

    /// Adds a line for the reader that is no event.
    pub fn remark(&self, text: impl FnOnce() -> String) {
        if let Some(print) = self.print {
            print(&format!("        {}", text()));
        }
    }

    /// The hash of all events so far.
    #[must_use]
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// How many events there were.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.events
    }
}
