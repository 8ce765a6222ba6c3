//! `latency.hlog`: what HdrHistogram's tools read. Each line's tag names the sample and what was done: `subject.point.round.read`
//! by numbers, subjects and points from 0 and rounds from 1, with `c` behind the round of a second of two of the same.
//!
//! Samples are appended one after the other. A line that a killed run left half is passed over.

use super::outcome::Sample;
use crate::engine::histogram::{Buckets, Latency};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hdrhistogram::serialization::interval_log::{
    IntervalLogIterator, IntervalLogWriterBuilder, LogEntry, Tag,
};
use hdrhistogram::serialization::{Deserializer, V2DeflateSerializer};
use std::collections::HashMap;
use std::time::{Duration, SystemTime};

const COMMENT: &str = "latencies in nanoseconds, by second";
/// To people the longest of each line is told in milliseconds.
const NS_OF_MS: f64 = 1e6;

fn tag_of(sample: &Sample, what: &str) -> String {
    let twin = if sample.is_control { "c" } else { "" };
    format!("{}.{}.{}{twin}.{what}", sample.subject, sample.point, sample.round)
}

/// The lines of a sample; with what stands before all lines if it is the first.
pub(super) fn lines(sample: &Sample, is_first: bool) -> std::io::Result<Vec<u8>> {
    let mut lines = Vec::new();
    let mut serializer = V2DeflateSerializer::new();
    let mut builder = IntervalLogWriterBuilder::new();
    builder.with_max_value_divisor(NS_OF_MS);
    if is_first {
        let began = SystemTime::UNIX_EPOCH + Duration::from_millis(sample.began_unix_ms);
        builder.add_comment(COMMENT).with_start_time(began);
    }
    let mut writer = builder.begin_log_with(&mut lines, &mut serializer)?;
    let began = Duration::from_millis(sample.began_unix_ms);
    for (second, (reads, writes)) in sample.series.iter().zip(&sample.latencies) {
        let from = began + Duration::from_secs_f64((second.at_s - second.seconds).max(0.0));
        for (what, buckets) in [("read", reads), ("write", writes)] {
            if buckets.counts.is_empty() {
                continue;
            }
            let latency = Latency::from(buckets);
            let tag = tag_of(sample, what);
            let length = Duration::from_secs_f64(second.seconds);
            writer
                .write_histogram(latency.histogram(), from, length, Tag::new(&tag))
                .map_err(|error| std::io::Error::other(error.to_string()))?;
        }
    }
    Ok(lines)
}

/// Gives the samples their latencies back, second by second.
pub(super) fn read(bytes: &[u8], samples: &mut [Sample]) {
    let mut found: HashMap<String, Vec<(Duration, Buckets)>> = HashMap::new();
    let mut deserializer = Deserializer::new();
    for entry in IntervalLogIterator::new(bytes) {
        let Ok(LogEntry::Interval(interval)) = entry else { continue };
        let Some(tag) = interval.tag() else { continue };
        let Ok(encoded) = STANDARD.decode(interval.encoded_histogram()) else { continue };
        let Ok(histogram) = deserializer.deserialize::<u64, _>(&mut encoded.as_slice()) else { continue };
        let buckets = Buckets::from(&Latency::from_histogram(&histogram));
        found.entry(tag.as_str().to_owned()).or_default().push((interval.start_timestamp(), buckets));
    }
    for sample in samples {
        let began = Duration::from_millis(sample.began_unix_ms);
        sample.latencies = vec![Default::default(); sample.series.len()];
        for (what, is_read) in [("read", true), ("write", false)] {
            for (from, buckets) in found.remove(&tag_of(sample, what)).unwrap_or_default() {
                let from_s = from.saturating_sub(began).as_secs_f64();
                // By the middle, since a text keeps milliseconds only.
                let is_meant = |second: &super::outcome::Second| {
                    (second.at_s - second.seconds - from_s).abs() < (second.seconds / 2.0).max(0.002)
                };
                if let Some(number) = sample.series.iter().position(is_meant) {
                    let (reads, writes) = &mut sample.latencies[number];
                    *(if is_read { reads } else { writes }) = buckets;
                }
            }
        }
    }
}
