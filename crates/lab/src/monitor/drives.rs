//! What block devices did between two moments, by the kernel's counters
//! (<https://docs.kernel.org/admin-guide/iostats.html>).
//!
//! They count what a device completed, after the block layer merged and split what it was asked for. A
//! request's time runs from its start in the block layer to its completion, with what it waited there for the
//! device. A device whose counting is switched off (`/sys/block/…/queue/iostats`) seems to do nothing.

use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Bytes of a sector in these counters, whatever the device's own are.
const SECTOR_BYTES: f64 = 512.0;
const MIB: f64 = 1_048_576.0;

/// What was counted at one moment.
#[derive(Clone, Debug)]
pub struct Drives {
    at: Instant,
    devices: BTreeMap<String, Counters>,
}

/// What one device did in a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DriveUse {
    /// As the kernel calls it, for example `nvme0n1`.
    pub name: String,
    /// Completed reads a second.
    pub read_iops: f64,
    /// Completed writes a second.
    pub write_iops: f64,
    /// Read from it.
    pub read_mib_per_second: f64,
    /// Written to it.
    pub write_mib_per_second: f64,
    /// Average bytes of a read as the device got it. `None` without reads.
    pub read_bytes_each: Option<f64>,
    /// Average bytes of a write as the device got it. `None` without writes.
    pub write_bytes_each: Option<f64>,
    /// Average microseconds of a read. `None` without reads.
    pub read_us: Option<f64>,
    /// Average microseconds of a write. `None` without writes.
    pub write_us: Option<f64>,
    /// How many requests were on their way on average, of all kinds. The kernel adds a request's time when it
    /// completes, so that of a short time this tells what ended in it.
    pub in_flight: f64,
    /// Share of the time in which something was on its way, of 1. A device that does many things at once can
    /// do more at 1.
    pub busy: f64,
    /// Reads a second that were merged with another before the device got them.
    pub merged_reads_per_second: f64,
    /// Writes a second that were merged with another before the device got them.
    pub merged_writes_per_second: f64,
    /// Flushes of the device's cache a second, after the block layer combined them. `None` of a kernel before
    /// 5.5.
    pub flushes_per_second: Option<f64>,
}

impl Drives {
    /// As of now.
    #[must_use]
    pub fn now() -> Drives {
        let text = std::fs::read_to_string("/proc/diskstats").unwrap_or_default();
        let at = Instant::now();
        Drives { at, devices: devices_of(&text, &whole_devices()) }
    }

    /// What each device did since `earlier`, but for those that did nothing. One that was not there at both
    /// moments is left out.
    #[must_use]
    pub fn since(&self, earlier: &Drives) -> Vec<DriveUse> {
        let seconds = self.at.duration_since(earlier.at).as_secs_f64();
        let both =
            self.devices.iter().filter_map(|(name, now)| Some((name, now, earlier.devices.get(name)?)));
        both.filter(|_| seconds > 0.0)
            .filter_map(|(name, now, then)| now.since(then)?.over(name, seconds))
            .collect()
    }
}

/// Names of whole devices: partitions are counted in them too.
fn whole_devices() -> BTreeSet<String> {
    let entries = std::fs::read_dir("/sys/block").into_iter().flatten().flatten();
    // A file's name cannot hold the slash of `cciss/c0d0`.
    entries.filter_map(|entry| Some(entry.file_name().to_str()?.replace('!', "/"))).collect()
}

/// Of those devices that are in `whole`.
fn devices_of(diskstats: &str, whole: &BTreeSet<String>) -> BTreeMap<String, Counters> {
    let device = |line: &str| {
        let mut words = line.split_whitespace().skip(2);
        let name = words.next().filter(|name| whole.contains(*name))?;
        let numbers: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        Some((name.to_owned(), Counters::of(&numbers)?))
    };
    diskstats.lines().filter_map(device).collect()
}

/// Counters of one device, or what they grew by.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Counters {
    reads: Direction,
    writes: Direction,
    /// With something on its way.
    busy_ms: u64,
    /// Times of all requests together.
    weighted_ms: u64,
    discards: u64,
    flushes: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Direction {
    completed: u64,
    merged: u64,
    sectors: u64,
    ms: u64,
}

impl Counters {
    /// From the numbers behind a device's name. Discards came with Linux 4.18, flushes with 5.5.
    fn of(numbers: &[u64]) -> Option<Counters> {
        let direction = |at: usize| match numbers.get(at..at + 4)? {
            &[completed, merged, sectors, ms] => Some(Direction { completed, merged, sectors, ms }),
            _ => None,
        };
        Some(Counters {
            reads: direction(0)?,
            writes: direction(4)?,
            busy_ms: *numbers.get(9)?,
            weighted_ms: *numbers.get(10)?,
            discards: numbers.get(11).copied().unwrap_or(0),
            flushes: numbers.get(15).copied(),
        })
    }

    /// `None` of a device that was replaced by another of its name, whose counters began anew.
    fn since(&self, then: &Counters) -> Option<Counters> {
        Some(Counters {
            reads: self.reads.since(&then.reads)?,
            writes: self.writes.since(&then.writes)?,
            busy_ms: ms_since(self.busy_ms, then.busy_ms),
            weighted_ms: ms_since(self.weighted_ms, then.weighted_ms),
            discards: self.discards.checked_sub(then.discards)?,
            flushes: match self.flushes.zip(then.flushes) {
                Some((now, then)) => Some(now.checked_sub(then)?),
                None => None,
            },
        })
    }

    /// Of what was counted in `seconds`; `None` if that is nothing.
    fn over(&self, name: &str, seconds: f64) -> Option<DriveUse> {
        let requests = self.reads.completed + self.writes.completed + self.discards;
        if requests + self.flushes.unwrap_or(0) + self.busy_ms == 0 {
            return None;
        }
        let per_second = |count: u64| count as f64 / seconds;
        let mib_per_second = |sectors: u64| per_second(sectors) * SECTOR_BYTES / MIB;
        Some(DriveUse {
            name: name.to_owned(),
            read_iops: per_second(self.reads.completed),
            write_iops: per_second(self.writes.completed),
            read_mib_per_second: mib_per_second(self.reads.sectors),
            write_mib_per_second: mib_per_second(self.writes.sectors),
            read_bytes_each: self.reads.each(self.reads.sectors).map(|sectors| sectors * SECTOR_BYTES),
            write_bytes_each: self.writes.each(self.writes.sectors).map(|sectors| sectors * SECTOR_BYTES),
            read_us: self.reads.each(self.reads.ms).map(|ms| ms * 1000.0),
            write_us: self.writes.each(self.writes.ms).map(|ms| ms * 1000.0),
            in_flight: per_second(self.weighted_ms) / 1000.0,
            // The kernel counts in ticks of its clock and may be ahead by one.
            busy: (per_second(self.busy_ms) / 1000.0).min(1.0),
            merged_reads_per_second: per_second(self.reads.merged),
            merged_writes_per_second: per_second(self.writes.merged),
            flushes_per_second: self.flushes.map(per_second),
        })
    }
}

impl Direction {
    fn since(&self, then: &Direction) -> Option<Direction> {
        Some(Direction {
            completed: self.completed.checked_sub(then.completed)?,
            merged: self.merged.checked_sub(then.merged)?,
            sectors: self.sectors.checked_sub(then.sectors)?,
            ms: ms_since(self.ms, then.ms),
        })
    }

    fn each(&self, sum: u64) -> Option<f64> {
        (self.completed > 0).then(|| sum as f64 / self.completed as f64)
    }
}

/// Milliseconds are shown in 32 bits: those of a queue of 32 begin anew every one and a half days.
fn ms_since(now: u64, then: u64) -> u64 {
    u64::from((now as u32).wrapping_sub(then as u32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::MetadataExt;
    use std::time::Duration;

    const BEFORE: &str = "   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n \
        254       0 vda 32961 6190 2941074 9837 14448 42108 5010816 19836 0 6480 30486 8897 28 1570896 767 1337 45\n \
        254       1 vda1 32861 6190 2941074 9837 14448 42108 5010816 19836 0 6480 30486 8897 28 1570896 767 0 0\n";

    fn drives(at: Instant, text: &str) -> Drives {
        let whole = BTreeSet::from(["loop0".to_owned(), "vda".to_owned()]);
        Drives { at, devices: devices_of(text, &whole) }
    }

    #[test]
    fn what_was_captured_comes_out_as_by_hand() {
        let at = Instant::now();
        // 2 seconds later: 400 reads, 100 more merged into them, 3200 sectors, 800 ms; 100 writes, 60 more
        // merged into them, 51200 sectors, 500 ms; 3 on their way; 600 ms busy; 1340 ms of all requests
        // together; 20 flushes in 40 ms.
        let after = "   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n \
            254       0 vda 33361 6290 2944274 10637 14548 42168 5062016 20336 3 7080 31826 8897 28 1570896 767 1357 85\n \
            254       1 vda1 33261 6290 2944274 10637 14548 42168 5062016 20336 3 7080 31826 8897 28 1570896 767 0 0\n";
        let uses = drives(at + Duration::from_secs(2), after).since(&drives(at, BEFORE));
        let expected = DriveUse {
            name: "vda".to_owned(),
            read_iops: 200.0,
            write_iops: 50.0,
            read_mib_per_second: 0.78125,
            write_mib_per_second: 12.5,
            read_bytes_each: Some(4096.0),
            write_bytes_each: Some(262_144.0),
            read_us: Some(2000.0),
            write_us: Some(5000.0),
            in_flight: 0.67,
            busy: 0.3,
            merged_reads_per_second: 50.0,
            merged_writes_per_second: 30.0,
            flushes_per_second: Some(10.0),
        };
        assert_eq!(uses, [expected], "neither a partition nor a device that did nothing");
    }

    #[test]
    fn clocks_that_begin_anew_are_followed_and_devices_that_do_are_not() {
        assert_eq!(ms_since(100, 4_294_967_196), 200);
        let at = Instant::now();
        let (then, now) = (drives(at, BEFORE), at + Duration::from_secs(1));
        let replaced = "254 0 vda 5 0 40 1 0 0 0 0 0 1 1 0 0 0 0 0 0\n";
        assert_eq!(drives(now, replaced).since(&then), []);
        assert_eq!(drives(now, "254 0 vda 5 0 40\n").since(&then), [], "cut short");
    }

    #[test]
    fn kernels_that_do_not_count_flushes_have_none() {
        let at = Instant::now();
        let then = drives(at, "254 0 vda 5 0 40 1 0 0 0 0 0 1 1\n");
        let now = drives(at + Duration::from_secs(1), "254 0 vda 6 0 48 3 0 0 0 0 0 3 3\n");
        let uses = now.since(&then);
        assert_eq!((uses[0].read_us, uses[0].flushes_per_second), (Some(2000.0), None));
        assert_eq!((uses[0].write_us, uses[0].write_bytes_each), (None, None));
    }

    /// The drive that a file of this program's folder lies on, with its sectors written by the drive's own
    /// file.
    fn own_drive() -> Option<(String, impl Fn() -> f64)> {
        let number = std::fs::metadata(std::env::current_exe().ok()?.parent()?).ok()?.dev();
        let (major, minor) = ((number >> 8) & 0xfff, (number & 0xff) | ((number >> 12) & 0xfff00));
        let path = std::fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
        let path = if path.join("partition").exists() { path.parent()?.to_owned() } else { path };
        let name = path.file_name()?.to_str()?.to_owned();
        let written = move || {
            let text = std::fs::read_to_string(path.join("stat")).unwrap();
            text.split_whitespace().nth(6).unwrap().parse::<f64>().unwrap() * SECTOR_BYTES / MIB
        };
        Some((name, written))
    }

    #[test]
    fn what_is_written_to_a_drive_is_seen_between_what_its_own_file_tells_inside_and_outside() {
        // On a file system without a drive of its own there is nothing to see.
        let Some((name, written)) = own_drive() else { return };
        let path = std::env::current_exe().unwrap().with_extension("written-by-a-test");
        let outside = written();
        let then = Drives::now();
        let inside = written();
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(&vec![0x5a; 16 << 20]).unwrap();
        file.sync_all().unwrap();
        std::fs::remove_file(&path).unwrap();
        let inside = written() - inside;
        let now = Drives::now();
        let outside = written() - outside;
        let uses = now.since(&then);
        let drive = uses.iter().find(|drive| drive.name == name).unwrap();
        let seen = drive.write_mib_per_second * now.at.duration_since(then.at).as_secs_f64();
        assert!(
            inside >= 16.0 && seen > inside - 0.01 && seen < outside + 0.01,
            "{inside} {outside} {drive:?}"
        );
        assert!(drive.write_iops > 0.0 && drive.busy > 0.0, "{drive:?}");
    }
}
