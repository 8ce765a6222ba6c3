//! Headers of batches that rot while the power is off.
//!
//! Of what is in a batch's blocks a rotten one is an error when it is read. Of a header that rots the start must say so, wherever
//! anything else on the drive tells that the batch was durable: without it the log would end there, and what was acknowledged since
//! would be gone. What rotted is as it was afterwards, and the life goes on.

use super::Life;
use crate::drive::Content;
use crate::plan::LOG_OFFSET_BYTES;
use crate::random::Random;
use base::{BLOCK_BYTES, Fingerprints};
use store::layout::{BatchHeader, SUPERBLOCK_OFFSETS, Superblock};
use store::testing::batch_header;
use zerocopy::FromBytes;

/// How often a header rots before a start, of a hundred.
const ROT_PERCENT: u64 = 40;

/// A header that has rotted.
pub(super) struct Rotten {
    location: u32,
    now: Content,
    before: Content,
}

impl Life {
    /// Perhaps lets the header of a batch rot of which something else on the drive says that it was durable: often the newest such
    /// one.
    pub(super) fn rot_a_header(&mut self) -> Option<Rotten> {
        let mut random = self.header_rot.take()?;
        let rotten = self.rot_one(&mut random);
        self.header_rot = Some(random);
        rotten
    }

    fn rot_one(&mut self, random: &mut Random) -> Option<Rotten> {
        // What is in the cache alone may be lost yet, and what it was with it.
        if !self.drive.is_settled() || !random.percent(ROT_PERCENT) {
            return None;
        }
        let fingerprints = Fingerprints::new(&self.secret);
        let first = (LOG_OFFSET_BYTES / BLOCK_BYTES as u64) as u32;
        let header =
            |location: u32| Some((location, batch_header(self.drive.block(location), &fingerprints)?));
        let headers: Vec<(u32, BatchHeader)> = (first..self.drive.block_count()).filter_map(header).collect();
        let superblocks = SUPERBLOCK_OFFSETS.map(|offset| {
            let block = self.drive.block((offset / BLOCK_BYTES as u64) as u32);
            Superblock::read_from_bytes(block).ok().filter(Superblock::is_intact)
        });
        let begun = superblocks.into_iter().flatten().map(|superblock| superblock.mount_begin.get()).max();
        let begun = begun.map_or(0, |begin| begin.saturating_sub(1));
        // Where all batches of a segment may be under way at a time, what follows it may be found by none.
        let batch_bytes = self.options.batch_bytes_max.max(256 << 10);
        let are_small =
            self.plan.segment_bytes as usize <= (self.options.batches_in_flight_max + 1) * batch_bytes;
        let segment = |location: &u32| (location - first) / (self.plan.segment_bytes / BLOCK_BYTES as u32);
        let is_told = |(location, header): &(u32, BatchHeader)| {
            let tells = |(place, other): &(u32, BatchHeader)| {
                other.durable_through >= header.sequence
                    && (!are_small || segment(place) == segment(location) && place > location)
            };
            header.sequence.get() <= begun || headers.iter().any(tells)
        };
        let mut headers: Vec<&(u32, BatchHeader)> = headers.iter().filter(|header| is_told(header)).collect();
        headers.sort_by_key(|(_, header)| header.sequence.get());
        let from = if random.percent(70) { headers.len().saturating_sub(4) } else { 0 };
        let headers = &headers[from..];
        let (location, header) = headers.get(random.index(headers.len().max(1)))?;
        self.trace.note("a header rots", &[u64::from(*location), header.sequence.get()]);
        let before = self.drive.content(*location);
        self.drive.rot(*location);
        Some(Rotten { location: *location, now: self.drive.content(*location), before })
    }

    /// What rotted is as it was.
    pub(super) fn heal(&mut self, Rotten { location, now, before }: Rotten) {
        self.drive.heal(location, &now, &before);
    }
}
