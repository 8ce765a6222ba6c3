//! What simulations in tests draw from.

use crate::engine::generator::Random;

impl Random {
    /// Evenly within (0, 1).
    pub fn uniform(&mut self) -> f64 {
        ((self.bits() >> 11) as f64 + 0.5) / (1u64 << 53) as f64
    }

    /// Of a normal distribution with mean 0 and standard deviation 1: Box and Muller (1958).
    pub fn normal(&mut self) -> f64 {
        (-2.0 * self.uniform().ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Of Student's distribution with three degrees of freedom, scaled to a standard deviation of 1: heavy
    /// tails.
    pub fn heavy(&mut self) -> f64 {
        let spread = (0..3).map(|_| self.normal().powi(2)).sum::<f64>() / 3.0;
        self.normal() / spread.sqrt() / 3f64.sqrt()
    }

    /// How many of many rare events happen where `mean` are expected; up to some hundreds: Knuth, volume 2,
    /// 3.4.1.
    pub fn poisson(&mut self, mean: f64) -> usize {
        let limit = (-mean).exp();
        let mut product = self.uniform();
        let mut count = 0;
        while product > limit {
            product *= self.uniform();
            count += 1;
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_the_reference_implementation() {
        // Vigna's splitmix64.c with the seed 1234567.
        let mut random = Random::new(1_234_567);
        assert_eq!(
            [random.bits(), random.bits(), random.bits()],
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423]
        );
    }

    #[test]
    fn every_index_below_a_bound_is_drawn_about_as_often() {
        let mut random = Random::new(1);
        let mut drawn = [0; 12];
        (0..120_000).for_each(|_| drawn[random.index(12)] += 1);
        assert!(drawn.iter().all(|count| (9_500..10_500).contains(count)), "{drawn:?}");
    }
}
