//! A job: which target, which operations, how many at once and for how long. Names and meanings are fio's.

use base::units::ByteSize;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// The most operations a job may keep in flight.
pub const DEPTH_MAX: u32 = 4096;
/// The largest operation, in bytes: what NBD allows.
pub const BLOCK_BYTES_MAX: u64 = 32 << 20;
/// The most memory a job's buffers may take, in bytes.
pub const BUFFER_BYTES_MAX: u64 = 4 << 30;

/// Why a job cannot be run as it is described.
#[derive(thiserror::Error, Debug, PartialEq, Eq)]
pub enum PlanError {
    /// No such mode.
    #[error(
        "--rw {0:?} is not a mode; choose read, write, randread, randwrite, rw (sequential mix) or randrw \
         (random mix)"
    )]
    Mode(String),
    /// No such kind of target.
    #[error(
        "--target {0:?} names no target; write raw:PATH for a device or a file, volume:NAME for a volume of the \
         cluster, nbd:URI for an export, or vhost-user:SOCKET for the disk of a back-end, for example raw:/dev/nvme0n1, volume:demo or \
         nbd:nbd://localhost/demo"
    )]
    Target(String),
    /// An operation of no bytes, or of too many.
    #[error("--bs {0} is outside 1 byte to 32MiB; 4k is usual for IOPS and 1MiB for throughput")]
    BlockSize(ByteSize),
    /// No operation in flight, or too many.
    #[error("--iodepth {0} is outside 1 to 4096; use 1 to measure latency and 64 to measure throughput")]
    Depth(u32),
    /// Buffers that would fill the memory.
    #[error("--bs {block} times --iodepth {depth} needs more than 4GiB of buffers; lower one of them")]
    Buffers {
        /// Bytes of an operation.
        block: ByteSize,
        /// Operations in flight.
        depth: u32,
    },
    /// A percentage above 100.
    #[error("--rwmixread {0} is no percentage; give 0 to 100, the share of reads")]
    Mix(u8),
    /// No operation a second.
    #[error("--rate-iops 0 asks for nothing; leave it out for as many operations as can be done")]
    Rate,
    /// Nothing would end the job.
    #[error("the job has no end; give --runtime SECONDS, or --io-size BYTES to stop after so much I/O")]
    Endless,
    /// Bytes that are no multiple of what the target can address.
    #[error("--{option} {value} is not a multiple of {alignment} bytes, which {target} requires; round it")]
    Alignment {
        /// The option's name.
        option: &'static str,
        /// What it was given.
        value: u64,
        /// What it must be a multiple of.
        alignment: u32,
        /// The target.
        target: String,
    },
    /// A region that begins or ends beyond the target.
    #[error(
        "--offset {offset} and --size {size} reach beyond {target}, which has {available} bytes; leave out --size \
         to use all of it"
    )]
    Beyond {
        /// Where the region starts, in bytes.
        offset: u64,
        /// Its bytes.
        size: u64,
        /// The target's bytes.
        available: u64,
        /// The target.
        target: String,
    },
    /// A region smaller than one operation.
    #[error(
        "the region of {region} bytes on {target} does not hold one operation of --bs {block}; enlarge --size"
    )]
    Small {
        /// Bytes of the region.
        region: u64,
        /// Bytes of an operation.
        block: ByteSize,
        /// The target.
        target: String,
    },
}

/// Which operations, in which order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Sequential reads.
    Read,
    /// Sequential writes.
    Write,
    /// Random reads.
    RandomRead,
    /// Random writes.
    RandomWrite,
    /// Sequential reads and writes, each with its own position.
    ReadWrite,
    /// Random reads and writes.
    RandomReadWrite,
}

impl Mode {
    /// Whether offsets are random.
    #[must_use]
    pub fn is_random(self) -> bool {
        matches!(self, Mode::RandomRead | Mode::RandomWrite | Mode::RandomReadWrite)
    }

    /// Whether it may write, and so destroys what the target holds.
    #[must_use]
    pub fn writes(self) -> bool {
        !matches!(self, Mode::Read | Mode::RandomRead)
    }

    /// The share of reads in percent, where `mix` is that of the mixed modes.
    #[must_use]
    pub fn read_percent(self, mix: u8) -> u8 {
        match self {
            Mode::Read | Mode::RandomRead => 100,
            Mode::Write | Mode::RandomWrite => 0,
            Mode::ReadWrite | Mode::RandomReadWrite => mix,
        }
    }

    /// fio's name of it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Mode::Read => "read",
            Mode::Write => "write",
            Mode::RandomRead => "randread",
            Mode::RandomWrite => "randwrite",
            Mode::ReadWrite => "rw",
            Mode::RandomReadWrite => "randrw",
        }
    }
}

impl FromStr for Mode {
    type Err = PlanError;
    fn from_str(text: &str) -> Result<Mode, PlanError> {
        Ok(match text {
            "read" => Mode::Read,
            "write" => Mode::Write,
            "randread" => Mode::RandomRead,
            "randwrite" => Mode::RandomWrite,
            "rw" | "readwrite" => Mode::ReadWrite,
            "randrw" => Mode::RandomReadWrite,
            _ => return Err(PlanError::Mode(text.to_owned())),
        })
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

/// What a job runs against.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetName {
    /// A block device or a file, opened for direct I/O.
    Raw(PathBuf),
    /// A volume of the cluster, by name.
    Volume(String),
    /// An NBD export, by URI.
    Nbd(String),
    /// The disk of a vhost-user-blk back-end, by its socket.
    VhostUser(PathBuf),
    /// What a shell runs: each run is an operation.
    Command(String),
}

impl FromStr for TargetName {
    type Err = PlanError;
    fn from_str(text: &str) -> Result<TargetName, PlanError> {
        match text.split_once(':') {
            Some(("raw", path)) if !path.is_empty() => Ok(TargetName::Raw(path.into())),
            Some(("volume", name)) if !name.is_empty() => Ok(TargetName::Volume(name.to_owned())),
            Some(("nbd", uri)) if !uri.is_empty() => {
                // `nbd://host/export` is itself a URI of that scheme: nobody should have to write it twice.
                Ok(TargetName::Nbd(if uri.starts_with("//") { text.to_owned() } else { uri.to_owned() }))
            }
            Some(("vhost-user", path)) if !path.is_empty() => Ok(TargetName::VhostUser(path.into())),
            Some(("command", line)) if !line.is_empty() => Ok(TargetName::Command(line.to_owned())),
            Some(("nbd+unix" | "nbds" | "nbds+unix", _)) => Ok(TargetName::Nbd(text.to_owned())),
            _ => Err(PlanError::Target(text.to_owned())),
        }
    }
}

impl fmt::Display for TargetName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TargetName::Raw(path) => write!(formatter, "raw:{}", path.display()),
            TargetName::Volume(name) => write!(formatter, "volume:{name}"),
            TargetName::Nbd(uri) => write!(formatter, "nbd:{uri}"),
            TargetName::VhostUser(path) => write!(formatter, "vhost-user:{}", path.display()),
            TargetName::Command(line) => write!(formatter, "command:{line}"),
        }
    }
}

/// One job. [`Job::new`] gives fio's defaults where fio has them; change what differs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// What it runs against.
    #[serde(with = "as_text")]
    pub target: TargetName,
    /// Which operations.
    #[serde(rename = "rw", with = "as_text")]
    pub mode: Mode,
    /// Bytes of each operation.
    #[serde(rename = "bs")]
    pub block: ByteSize,
    /// Operations kept in flight.
    #[serde(rename = "iodepth")]
    pub depth: u32,
    /// Share of reads in the mixed modes, in percent.
    #[serde(rename = "rwmixread")]
    pub mix_read_percent: u8,
    /// How long to measure, in seconds in JSON. Without it the job ends with `io_size`.
    #[serde(rename = "runtime", with = "optional_seconds", default)]
    pub runtime: Option<Duration>,
    /// How long to run before measuring, in seconds in JSON.
    #[serde(rename = "ramp_time", with = "seconds", default)]
    pub ramp: Duration,
    /// Where the region begins, in bytes.
    #[serde(default)]
    pub offset: u64,
    /// Bytes of the region; all that follows `offset` if absent.
    #[serde(default)]
    pub size: Option<u64>,
    /// Bytes of I/O after which the job ends, if `runtime` does not end it first.
    #[serde(default)]
    pub io_size: Option<u64>,
    /// Operations a second that are asked for, however many are done; as many as can be if absent.
    #[serde(default)]
    pub rate_iops: Option<u32>,
    /// Whether zeros are written in place of random bytes. Stores that recognise them look faster than they are.
    #[serde(default)]
    pub zero_buffers: bool,
    /// The number from which offsets, mix and data follow.
    #[serde(default)]
    pub seed: u64,
}

/// The part of a target that a job uses, checked: a whole number of operations inside the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    /// Where it begins, in bytes.
    pub offset: u64,
    /// How many operations it holds, at least 1.
    pub blocks: u64,
    /// Bytes of an operation.
    pub block_bytes: u32,
}

impl Job {
    /// A job of 4 KiB operations, one in flight, 20 s.
    #[must_use]
    pub fn new(target: TargetName, mode: Mode) -> Job {
        Job {
            target,
            mode,
            block: ByteSize(4096),
            depth: 1,
            mix_read_percent: 50,
            runtime: Some(Duration::from_secs(20)),
            ramp: Duration::ZERO,
            offset: 0,
            size: None,
            io_size: None,
            rate_iops: None,
            zero_buffers: false,
            seed: 0,
        }
    }

    /// A job that writes the first `bytes` of `target` once, with large sequential writes.
    #[must_use]
    pub fn prefill(target: TargetName, bytes: u64) -> Job {
        Job {
            block: ByteSize(1 << 20),
            depth: 8,
            runtime: None,
            size: Some(bytes),
            io_size: Some(bytes),
            ..Job::new(target, Mode::Write)
        }
    }

    /// Checks what can be checked without the target.
    ///
    /// # Errors
    /// The first thing that is wrong, and what to give instead.
    pub fn validate(&self) -> Result<(), PlanError> {
        if self.block.0 == 0 || self.block.0 > BLOCK_BYTES_MAX {
            return Err(PlanError::BlockSize(self.block));
        }
        if self.depth == 0 || self.depth > DEPTH_MAX {
            return Err(PlanError::Depth(self.depth));
        }
        if self.block.0 * u64::from(self.depth) > BUFFER_BYTES_MAX {
            return Err(PlanError::Buffers { block: self.block, depth: self.depth });
        }
        if self.mix_read_percent > 100 {
            return Err(PlanError::Mix(self.mix_read_percent));
        }
        if self.rate_iops == Some(0) {
            return Err(PlanError::Rate);
        }
        if self.runtime.is_none_or(|runtime| runtime.is_zero()) && self.io_size.is_none_or(|bytes| bytes == 0)
        {
            return Err(PlanError::Endless);
        }
        Ok(())
    }

    /// Checks the job against a target of `target_bytes` whose operations must be multiples of
    /// `alignment_bytes`, and gives the region to work on.
    ///
    /// # Errors
    /// As [`Job::validate`], and where region and target do not fit each other.
    pub fn region(&self, target_bytes: u64, alignment_bytes: u32) -> Result<Region, PlanError> {
        self.validate()?;
        let target = self.target.to_string();
        for (option, value) in [("bs", self.block.0), ("offset", self.offset)] {
            if value % u64::from(alignment_bytes.max(1)) != 0 {
                return Err(PlanError::Alignment { option, value, alignment: alignment_bytes, target });
            }
        }
        let size = self.size.unwrap_or(target_bytes.saturating_sub(self.offset));
        if self.offset.checked_add(size).is_none_or(|end| end > target_bytes) || self.offset > target_bytes {
            return Err(PlanError::Beyond { offset: self.offset, size, available: target_bytes, target });
        }
        let blocks = size / self.block.0;
        if blocks == 0 {
            return Err(PlanError::Small { region: size, block: self.block, target });
        }
        let block_bytes = u32::try_from(self.block.0).expect("validate bounded it by 32 MiB");
        Ok(Region { offset: self.offset, blocks, block_bytes })
    }

    /// The share of reads among its operations, in percent.
    #[must_use]
    pub fn read_percent(&self) -> u8 {
        self.mode.read_percent(self.mix_read_percent)
    }

    /// The options of `millpond bench` that describe it.
    #[must_use]
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = Vec::new();
        let mut option = |name: &str, value: String| arguments.extend([format!("--{name}"), value]);
        option("target", self.target.to_string());
        option("rw", self.mode.to_string());
        option("bs", self.block.0.to_string());
        option("iodepth", self.depth.to_string());
        option("rwmixread", self.mix_read_percent.to_string());
        if let Some(runtime) = self.runtime {
            option("runtime", runtime.as_secs_f64().to_string());
        }
        if !self.ramp.is_zero() {
            option("ramp-time", self.ramp.as_secs_f64().to_string());
        }
        if self.offset > 0 {
            option("offset", self.offset.to_string());
        }
        if let Some(size) = self.size {
            option("size", size.to_string());
        }
        if let Some(io_size) = self.io_size {
            option("io-size", io_size.to_string());
        }
        if let Some(rate) = self.rate_iops {
            option("rate-iops", rate.to_string());
        }
        option("seed", self.seed.to_string());
        if self.zero_buffers {
            arguments.push("--zero-buffers".to_owned());
        }
        arguments
    }
}

/// Reads a time as fio's `--runtime` takes it: seconds, whole or not, at most ten years.
///
/// # Errors
/// A sentence for the person who typed it.
pub fn parse_seconds(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time in seconds; write for example 20 or 0.5");
    let text = text.trim();
    let seconds: f64 = text.strip_suffix('s').unwrap_or(text).parse().map_err(|_| wrong())?;
    if !(0.0..=3.2e8).contains(&seconds) {
        return Err(wrong());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// What is written as the text that people give.
pub(crate) mod as_text {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::{fmt::Display, str::FromStr};

    pub fn serialize<T: Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }
    pub fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(from: D) -> Result<T, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

mod seconds {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::time::Duration;

    pub fn serialize<S: Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(duration.as_secs_f64())
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Duration, D::Error> {
        Duration::try_from_secs_f64(f64::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

mod optional_seconds {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};
    use std::time::Duration;

    pub fn serialize<S: Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
        duration.map(|duration| duration.as_secs_f64()).serialize(serializer)
    }
    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Duration>, D::Error> {
        Option::<f64>::deserialize(deserializer)?
            .map(|seconds| Duration::try_from_secs_f64(seconds).map_err(D::Error::custom))
            .transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raw(mode: Mode) -> Job {
        Job::new(TargetName::Raw("/dev/loop9".into()), mode)
    }

    #[test]
    fn modes_and_targets_read_back_what_they_print() {
        for mode in ["read", "write", "randread", "randwrite", "rw", "randrw"] {
            assert_eq!(mode.parse::<Mode>().unwrap().to_string(), mode);
        }
        assert_eq!("readwrite".parse(), Ok(Mode::ReadWrite));
        assert!(matches!("trim".parse::<Mode>(), Err(PlanError::Mode(_))));
        for target in ["raw:/dev/loop0", "volume:demo", "nbd:nbd+unix:///demo?socket=/run/demo"] {
            assert_eq!(target.parse::<TargetName>().unwrap().to_string(), target);
        }
        assert_eq!("nbd://host/x".parse(), Ok(TargetName::Nbd("nbd://host/x".into())));
        for wrong in ["/dev/loop0", "raw:", "volume:", "disk:x", ""] {
            assert!(matches!(wrong.parse::<TargetName>(), Err(PlanError::Target(_))), "{wrong}");
        }
    }

    #[test]
    fn a_pure_mode_ignores_the_mix() {
        assert_eq!(Mode::RandomRead.read_percent(75), 100);
        assert_eq!(Mode::Write.read_percent(75), 0);
        assert_eq!(Mode::RandomReadWrite.read_percent(75), 75);
        assert!(Mode::ReadWrite.writes() && !Mode::ReadWrite.is_random());
    }

    #[test]
    fn each_wrong_value_is_refused_with_its_option_named() {
        let check = |change: fn(&mut Job), expected: &str| {
            let mut job = raw(Mode::RandomRead);
            change(&mut job);
            let error = job.region(1 << 30, 512).unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        };
        check(|job| job.block = ByteSize(0), "--bs");
        check(|job| job.block = ByteSize(64 << 20), "32MiB");
        check(|job| job.block = ByteSize(1000), "multiple of 512");
        check(|job| job.offset = 100, "--offset 100");
        check(|job| job.depth = 0, "--iodepth 0");
        check(|job| job.depth = 5000, "4096");
        check(|job| (job.block, job.depth) = (ByteSize(32 << 20), 4096), "4GiB of buffers");
        check(|job| job.mix_read_percent = 101, "--rwmixread 101");
        check(|job| job.rate_iops = Some(0), "--rate-iops 0");
        check(|job| job.runtime = None, "--runtime");
        check(|job| job.runtime = Some(Duration::ZERO), "--runtime");
        check(|job| job.size = Some(2 << 30), "reach beyond raw:/dev/loop9");
        check(|job| job.offset = 2 << 30, "reach beyond");
        check(|job| (job.offset, job.size) = (512, Some(u64::MAX)), "reach beyond");
        check(|job| job.size = Some(512), "does not hold one operation");
    }

    #[test]
    fn a_region_is_cut_to_whole_operations() {
        let mut job = raw(Mode::RandomRead);
        (job.offset, job.size) = (8192, Some(10_000));
        assert_eq!(job.region(1 << 20, 512), Ok(Region { offset: 8192, blocks: 2, block_bytes: 4096 }));
        job.size = None;
        assert_eq!(job.region(1 << 20, 512).unwrap().blocks, 254);
        job.block = ByteSize(1);
        assert_eq!(job.region(1 << 20, 1).unwrap().blocks, (1 << 20) - 8192);
    }

    #[test]
    fn a_job_survives_json() {
        let mut job = Job::prefill(TargetName::Volume("demo".into()), 4 << 30);
        job.ramp = Duration::from_millis(1500);
        let text = serde_json::to_string(&job).unwrap();
        assert!(text.contains(r#""rw":"write""#) && text.contains(r#""ramp_time":1.5"#), "{text}");
        assert_eq!(serde_json::from_str::<Job>(&text).unwrap(), job);
    }

    #[test]
    fn seconds_are_read_and_nonsense_is_not() {
        assert_eq!(parse_seconds("20"), Ok(Duration::from_secs(20)));
        assert_eq!(parse_seconds("0.5s"), Ok(Duration::from_millis(500)));
        for wrong in ["", "-1", "NaN", "inf", "1e300", "soon"] {
            assert!(parse_seconds(wrong).is_err(), "{wrong}");
        }
    }
}
