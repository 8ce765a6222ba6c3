//! Counting again what a store counts as it goes.

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
            if logs.home(key) != key {
                return Err(format!("{key} lies in a group that it is not one of any more"));
            }
            for entry in object.entries().filter(|entry| !entry.is_hole()) {
                let segment =
                    segments.of(entry.location).ok_or(format!("{key}: {entry:?} lies in no segment"))?;
                live[segment as usize] += 1;
                blocks += 1;
                if !seen.insert(entry.location) {
                    return Err(format!("{key}: {entry:?} belongs to two blocks"));
                }
            }
            if let Some(page) = object.page {
                let segment = segments.of(page.location.get()).ok_or("a page lies in no segment")?;
                pages[segment as usize] += page.blocks();
            }
        }
        // While a checkpoint is under way, what it has written of its root is counted too.
        let is_exact = self.checkpoint.is_idle();
        for piece in self.checkpoint.superblock().pieces().iter().chain(self.checkpoint.replaced()) {
            let segment = segments.of(piece.location.get()).ok_or("a checkpoint lies in no segment")?;
            pages[segment as usize] += piece.blocks();
        }
        if !index.is_told_truly() {
            return Err(
                "the index tells another number of objects, or other blocks of a layer, than it has".into()
            );
        }
        if blocks != index.block_count {
            return Err(format!("the index counts {} blocks and has {blocks}", index.block_count));
        }
        for (number, segment) in segments.all.iter().enumerate() {
            let (live, pages) = (live[number], pages[number]);
            if segment.live != live {
                return Err(format!("segment {number} counts {} live blocks and has {live}", segment.live));
            }
            if segment.pages < pages || is_exact && segment.pages > pages {
                return Err(format!("segment {number} counts {} page blocks and has {pages}", segment.pages));
            }
            if segment.state == SegmentState::Free && (segment.live > 0 || segment.pages > 0) {
                return Err(format!("segment {number} is free and holds {} live blocks", segment.live));
            }
        }
        let counted: u64 = segments.all.iter().map(|segment| u64::from(segment.pages)).sum();
        if segments.pages_blocks != counted {
            let told = segments.pages_blocks;
            return Err(format!("{told} page blocks are counted, and the segments have {counted}"));
        }
        let counted: u64 = logs.groups.values().map(|log| log.bytes_max(logs.entries_max)).sum();
        if logs.bytes_max != counted {
            let told = logs.bytes_max;
            return Err(format!("the groups' logs count {told} bytes of a root, and may take {counted}"));
        }
        Ok(())
    }
}
