//! What tests of simulated lives have in common.

use std::ops::Range;

/// Seeds that nobody tried before, and a line that says where they begin.
pub fn fresh_seeds(count: u64) -> Range<u64> {
    #[expect(clippy::disallowed_methods, reason = "the start alone is fresh, and it is printed")]
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let start = now.expect("it is later than 1970").as_nanos() as u64 >> 10;
    println!("fresh seeds from {start}");
    start..start + count
}
