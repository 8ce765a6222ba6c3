//! Standing still while snapshots are made, as the map asks for.
//!
//! Changes that are submitted meanwhile are put off, and begin when the map asks no more: in the layer that it shows by then. What
//! was begun before ends in the one that it began in. Reads go on.

use super::{Client, Completion, Operation, Outcome, PieceKind, Submission, VolumeHandle};
use crate::error::ClientError;
use base::map::Stillness;
use base::{Buffer, Instant, Network};
use std::collections::VecDeque;

/// What is known of a volume's standing still.
#[derive(Debug, Default)]
pub(super) struct Still {
    /// Which time the newest map asks for.
    pub(super) asked: Option<Stillness>,
    /// The last one of which [`Client::poll_still`] told.
    told: Option<Stillness>,
    /// Changes that begin when it is over, in order.
    put_off: VecDeque<(PieceKind, Submission, Option<Buffer>)>,
}

impl Still {
    /// How many changes have not begun.
    pub(super) fn put_off_count(&self) -> usize {
        self.put_off.len()
    }

    /// Puts a change off.
    pub(super) fn put_off(&mut self, kind: PieceKind, what: Submission, buffer: Option<Buffer>) {
        self.put_off.push_back((kind, what, buffer));
    }
}

impl Client {
    /// A volume that stands still now, for the time that the map asks for: each once for each time. None of what is submitted takes
    /// effect before a map asks no more, and nothing that was begun will later than now.
    pub fn poll_still(&mut self) -> Option<(VolumeHandle, Stillness)> {
        if self.volumes.iter().all(|volume| volume.still.asked == volume.still.told) {
            return None;
        }
        let at = (0..self.volumes.len()).find(|at| {
            let (still, handle) = (&self.volumes[*at].still, VolumeHandle(*at as u32));
            let changes = |operation: &Operation| operation.volume == handle && operation.is_change;
            // What failed at its time limit may take effect yet.
            self.volumes[*at].loose_end.is_none()
                && still.asked.is_some()
                && still.asked != still.told
                && !self.operations.iter().flatten().any(changes)
        })?;
        let still = &mut self.volumes[at].still;
        still.told = still.asked;
        still.asked.map(|number| (VolumeHandle(at as u32), number))
    }

    /// Begins the changes that were put off for volumes that are not to stand still any more.
    pub(super) fn go_on(&mut self, now: Instant, io: &mut impl Network) {
        for at in 0..self.volumes.len() {
            let still = &mut self.volumes[at].still;
            if still.asked.is_some() {
                continue;
            }
            still.told = None;
            for (kind, what, buffer) in std::mem::take(&mut still.put_off) {
                self.submit(now, kind, what, buffer, io);
            }
        }
    }

    /// Ends changes that were put off and whose askers are gone.
    pub(super) fn drop_put_off(&mut self, is_gone: &mut impl FnMut(u64) -> bool) {
        for volume in &mut self.volumes {
            let name = &volume.name;
            for (kind, what, buffer) in std::mem::take(&mut volume.still.put_off) {
                if is_gone(what.token) {
                    let outcome = Outcome::Failed(ClientError::Abandoned { volume: name.clone() });
                    self.completions.push_back(Completion { token: what.token, buffer, outcome });
                } else {
                    volume.still.put_off(kind, what, buffer);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
