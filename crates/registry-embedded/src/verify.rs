//! Verifies every page of a redb file before redb works on it.
//!
//! redb trusts the pages of a file that was written in two-phase commits, and panics over one that is
//! damaged. It verifies all checksums only where it repairs after a one-phase commit. So the repair is run
//! on a copy in memory whose header asks for it, and a copy that does not verify condemns the file.
//!
//! One thing in the header has no checksum: the bit that says which of the two commit slots holds. The
//! older slot would be a complete, valid, outdated registry, so the newer one is taken wherever all of both
//! verifies. After a crash within a commit that is a commit that nobody was told of; it is as good done
//! as not done.
//!
//! The offsets are those of redb's file format 3 (its `docs/design.md`, "Database super-header").

use redb::{Builder, DatabaseError, StorageBackend, StorageError, backends::InMemoryBackend};
use std::ops::Range;

/// Which slot holds (bit 0), whether it was closed uncleanly (1), whether commits are two-phase (2).
pub(super) const FLAGS_OFFSET: usize = 9;
const SECOND_SLOT_BIT: u8 = 1;
const TWO_PHASE_BIT: u8 = 4;
const SLOT_BYTES: usize = 128;
const SLOT_OFFSETS: [usize; 2] = [64, 64 + SLOT_BYTES];
/// Where in a slot the number of its transaction is.
const TRANSACTION_RANGE: Range<usize> = 104..112;
const HEADER_BYTES: usize = 64 + 2 * SLOT_BYTES;

/// Verifies a file's bytes. Returns the flags that its header ought to have, which differ from those it
/// has where it names the older slot.
///
/// # Errors
/// What does not verify.
pub(super) fn verify(bytes: &[u8], cache_bytes: usize) -> Result<u8, String> {
    if bytes.len() < HEADER_BYTES {
        return Err("it was cut short".to_owned());
    }
    let flags = bytes[FLAGS_OFFSET];
    let named = usize::from(flags & SECOND_SLOT_BIT != 0);
    let other = 1 - named;
    // A crash never harms the slot that is named. That it does not verify is damage, and the other slot
    // must not stand in for it: its number could be the newer one by that damage alone.
    verify_slot(bytes, named, cache_bytes)?;
    let newer = transaction(bytes, other) > transaction(bytes, named);
    if newer && verify_slot(bytes, other, cache_bytes).is_ok() {
        return Ok(flags ^ SECOND_SLOT_BIT);
    }
    Ok(flags)
}

fn slot_range(slot: usize) -> Range<usize> {
    SLOT_OFFSETS[slot]..SLOT_OFFSETS[slot] + SLOT_BYTES
}

fn transaction(bytes: &[u8], slot: usize) -> u64 {
    let number = &bytes[slot_range(slot)][TRANSACTION_RANGE];
    u64::from_le_bytes(std::array::from_fn(|at| number[at]))
}

/// Verifies what one slot leads to, on a copy that has nothing but this slot.
fn verify_slot(bytes: &[u8], slot: usize, cache_bytes: usize) -> Result<(), String> {
    let mut header = [0; HEADER_BYTES];
    header.copy_from_slice(&bytes[..HEADER_BYTES]);
    header.copy_within(slot_range(slot), SLOT_OFFSETS[1 - slot]);
    header[FLAGS_OFFSET] &= !TWO_PHASE_BIT;
    let copy = InMemoryBackend::new();
    let filled = copy
        .set_len(bytes.len() as u64)
        .and_then(|()| copy.write(0, bytes))
        .and_then(|()| copy.write(0, &header));
    filled.map_err(|error| error.to_string())?;
    let opened = Builder::new()
        .set_cache_size(cache_bytes)
        // redb calls between its steps: at 0 before the first, then at 0.3 only if a page did not verify,
        // at 0.6 and 0.9 on the way on.
        .set_repair_callback(|step| {
            if (0.2..0.5).contains(&step.progress()) {
                step.abort();
            }
        })
        .create_with_backend(copy);
    match opened {
        Ok(_) => Ok(()),
        Err(DatabaseError::RepairAborted) => Err("a page fails its checksum".to_owned()),
        Err(DatabaseError::Storage(StorageError::Io(error))) => Err(format!("a page is missing: {error}")),
        Err(error) => Err(error.to_string()),
    }
}
