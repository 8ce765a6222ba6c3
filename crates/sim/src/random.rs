//! The one source of chance in a simulation: small, seeded, the same on every machine.

use base::hash::mix;

/// A xoshiro256** generator (Blackman and Vigna, 2018), seeded through `SplitMix64`.
#[derive(Clone, Debug)]
pub struct Random {
    state: [u64; 4],
}

impl Random {
    /// The generator of `seed`. Neighbouring seeds give unrelated streams.
    #[must_use]
    pub fn new(seed: u64) -> Random {
        let mut state = [0; 4];
        for (index, word) in (1u64..).zip(&mut state) {
            *word = mix(seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        }
        Random { state }
    }

    /// A generator of its own for one actor, so that one actor's draws do not shift another's.
    #[must_use]
    pub fn fork(&mut self) -> Random {
        Random::new(self.next_u64())
    }

    /// 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let [a, b, c, d] = self.state;
        let result = b.wrapping_mul(5).rotate_left(7).wrapping_mul(9);
        let shifted = b << 17;
        let c = c ^ a;
        let d = d ^ b;
        self.state = [a ^ d, b ^ c, c ^ shifted, d.rotate_left(45)];
        result
    }

    /// A number below `limit`.
    ///
    /// # Panics
    /// If `limit` is 0: there is no such number.
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "no number is below 0");
        // The bias of the multiplication is limit / 2^64: nothing for the small limits used here.
        ((u128::from(self.next_u64()) * u128::from(limit)) >> 64) as u64
    }

    /// A number from `low` to `high`, both included.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// An index into something of `length` elements.
    pub fn index(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// True `percent` times of a hundred.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// True once in `times` draws.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of `choices`.
    pub fn choose<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_seed_gives_one_stream_and_another_seed_another() {
        let draw = |seed| {
            let mut random = Random::new(seed);
            (0..8).map(|_| random.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn every_number_below_the_limit_comes_up_about_equally_often() {
        let mut random = Random::new(1);
        let mut counts = [0u32; 10];
        for _ in 0..10_000 {
            counts[random.index(10)] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        assert!((0..100).all(|_| (3..=5).contains(&random.between(3, 5))));
    }
}
