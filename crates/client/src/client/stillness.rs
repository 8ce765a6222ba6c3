//! Standing still while snapshots are made, as the map asks for.
//!
//! Changes that are submitted meanwhile are put off, and begin when the map asks no more: in the layer that it shows by then. What
//! was begun before ends in the one that it began in. Reads go on.

use super::{Client, Completion, Notice, Operation, Outcome, PieceKind, Submission, VolumeHandle};
use crate::error::ClientError;
use base::map::Stillness;
use base::{Buffer, Instant, Network};
use std::collections::VecDeque;
use std::time::Duration;

/// What is known of a volume's standing still.
#[derive(Debug, Default)]
pub(super) struct Still {
    /// Which time the newest map asks for.
    pub(super) asked: Option<Stillness>,
    /// The last one of which [`Client::poll_still`] told.
    told: Option<Stillness>,
    /// Changes that begin when it is over, in order.
    put_off: VecDeque<PutOff>,
}

/// A change that has not begun: its volume is to stand still, or is not owned.
#[derive(Debug)]
pub(super) struct PutOff {
    pub(super) kind: PieceKind,
    pub(super) what: Submission,
    pub(super) buffer: Option<Buffer>,
    pub(super) submitted: Instant,
}

impl Still {
    /// How many changes have not begun.
    pub(super) fn put_off_count(&self) -> usize {
        self.put_off.len()
    }

    /// Puts a change off.
    pub(super) fn put_off(&mut self, change: PutOff) {
        self.put_off.push_back(change);
    }

    /// All that were put off.
    pub(super) fn take(&mut self) -> VecDeque<PutOff> {
        std::mem::take(&mut self.put_off)
    }

    /// Those of them that were submitted so long ago.
    pub(super) fn take_late(&mut self, now: Instant, limit: Duration) -> Vec<PutOff> {
        // They may have been put off more than once, and stand in no order then.
        let (late, rest) =
            self.take().into_iter().partition::<Vec<_>, _>(|change| now.since(change.submitted) >= limit);
        self.put_off = rest.into();
        late
    }

    /// Since when the oldest waits.
    pub(super) fn oldest(&self) -> Option<Instant> {
        self.put_off.iter().map(|change| change.submitted).min()
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
                && self.volumes[*at].ownership.is_owner()
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
            let volume = &mut self.volumes[at];
            if volume.still.asked.is_some() {
                continue;
            }
            volume.still.told = None;
            if !volume.lets_begin() {
                continue;
            }
            if let Some(since) = volume.ownership.told.take() {
                let (volume, waited) = (volume.name.clone(), now.since(since));
                self.tell(Notice::GoesOn { volume, waited });
            }
            let volume = &mut self.volumes[at];
            let is_opened = volume.ownership.is_opened();
            for mut change in volume.still.take() {
                // Who stood still did so for moments. An owner may have been waited for.
                change.submitted = if is_opened { change.submitted } else { now };
                self.begin(now, change, io);
            }
        }
    }

    /// Ends changes that were put off and whose askers are gone.
    pub(super) fn drop_put_off(&mut self, is_gone: &mut impl FnMut(u64) -> bool) {
        for volume in &mut self.volumes {
            let name = &volume.name;
            for change in volume.still.take() {
                if is_gone(change.what.token) {
                    let (token, buffer) = (change.what.token, change.buffer);
                    let outcome = Outcome::Failed(ClientError::Abandoned { volume: name.clone() });
                    self.completions.push_back(Completion { token, buffer, outcome });
                } else {
                    volume.still.put_off(change);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
