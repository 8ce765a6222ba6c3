//! The data path allocates nothing per operation: client, reactor, placement groups and stores of three OSDs, on
//! their own threads, over TCP, on files. The registry is played by the test.

mod common;

use common::{BLOCK, Pond, VOLUME_BYTES};
use ring::counting::{CountingAllocator, allocations};
use std::time::Instant;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

#[test]
fn reads_and_writes_allocate_nothing() {
    let mut pond = Pond::start();
    pond.becomes_active();
    // Until tables and logs have the size they keep: every block written, every group's log full.
    let blocks = VOLUME_BYTES / BLOCK;
    pond.run(2 * blocks, |_| true);
    pond.run(blocks, |number| number % 4 == 0);

    let count = 40_000;
    for (name, write_percent) in [("reads", 0), ("writes", 100), ("a mixture", 25)] {
        let (before, started) = (allocations(), Instant::now());
        pond.run(count, |number| number % 100 < write_percent);
        let during = allocations() - before;
        println!("{name}: {during} allocations during {count} operations");
        // What is not of the operations: each OSD tells its figures every second and its status every two, and a
        // checkpoint may need a longer list than the one before.
        let allowed = 200 + 60 * (1 + started.elapsed().as_secs());
        assert!(during <= allowed, "{name}: {during} allocations during {count} operations");
    }
    pond.stop();
}
