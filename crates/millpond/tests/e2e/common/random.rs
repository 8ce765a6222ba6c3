//! Randomness from a seed that a failing test prints.

/// `SplitMix64` (Steele, Lea and Flood, OOPSLA 2014).
pub struct Random(u64);

impl Random {
    /// From `MILLPOND_TEST_SEED`, else from the moment; the seed is printed.
    pub fn seeded() -> Random {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let seed = match std::env::var("MILLPOND_TEST_SEED") {
            Ok(text) => text.parse().expect("MILLPOND_TEST_SEED is a number"),
            Err(_) => now.expect("the clock is later than 1970").as_nanos() as u64,
        };
        eprintln!("MILLPOND_TEST_SEED={seed}");
        Random(seed)
    }

    /// What one with that seed draws is the same each time.
    pub fn of(seed: u64) -> Random {
        Random(seed)
    }

    /// Another one, for somebody else, so that what one draws does not change what the other does.
    pub fn fork(&mut self) -> Random {
        Random(self.next())
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        base::hash::mix(self.0)
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// That many bytes.
    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(count + 8);
        while bytes.len() < count {
            bytes.extend_from_slice(&self.next().to_le_bytes());
        }
        bytes.truncate(count);
        bytes
    }
}
