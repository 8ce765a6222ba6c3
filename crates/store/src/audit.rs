//! Counting again what a store counts as it goes.

use crate::checkpoint::old_root;
use crate::contents::Contents;
use crate::segments::SegmentState;
use crate::store::Store;

impl Store {
    /// Recomputes the accounting from the index. For tests and the simulator.
    ///
    /// # Errors
    /// The first difference, in words.
    pub fn verify(&self) -> Result<(), String> {
        let Contents { index, logs, segments } = &self.contents;
        let mut live = vec![0u32; segments.all.len()];
        let mut pages = vec![0u32; segments.all.len()];
        let mut seen = base::hash::Set::default();
        let mut blocks = 0;
        for (key, object) in index.iter() {
            if logs.home(*key) != *key {
                return Err(format!("{key} lies in a group that it is not one of any more"));
            }
            for entry in object.entries() {
                let segment =
                    segments.of(entry.location).ok_or(format!("{key}: {entry:?} lies in no segment"))?;
                live[segment as usize] += 1;
                blocks += 1;
                if !seen.insert(entry.location) {
                    return Err(format!("{key}: {entry:?} belongs to two blocks"));
                }
            }
            if let Some(page) = object.page {
                pages[segments.of(page.location).ok_or("a page lies in no segment")? as usize] +=
                    page.blocks();
            }
        }
        // While a checkpoint is under way, what it has written of its root is counted too.
        let is_exact = self.checkpoint.is_idle();
        for (location, blocks) in old_root(self.checkpoint.superblock()).chain(self.checkpoint.replaced()) {
            pages[segments.of(location).ok_or("a checkpoint lies in no segment")? as usize] += blocks;
        }
        if blocks != index.block_count {
            return Err(format!("the index counts {} blocks and has {blocks}", index.block_count));
        }
        for (number, segment) in segments.all.iter().enumerate() {
            if segment.live != live[number] {
                return Err(format!(
                    "segment {number} counts {} live blocks and has {}",
                    segment.live, live[number]
                ));
            }
            if segment.pages < pages[number] || is_exact && segment.pages > pages[number] {
                return Err(format!(
                    "segment {number} counts {} page blocks and has {}",
                    segment.pages, pages[number]
                ));
            }
            if segment.state == SegmentState::Free && (segment.live > 0 || segment.pages > 0) {
                return Err(format!("segment {number} is free and holds {} live blocks", segment.live));
            }
        }
        let counted: u64 = segments.all.iter().map(|segment| u64::from(segment.pages)).sum();
        if segments.pages_blocks != counted {
            return Err(format!(
                "{} page blocks are counted, and the segments have {counted}",
                segments.pages_blocks
            ));
        }
        Ok(())
    }
}
