//! The order of operations on the same bytes, once an attempt at one of them was in vain.
//!
//! As long as first attempts are answered, connections keep the order: what is for one group goes to one OSD, which takes
//! what comes on a connection from the front, and does what conflicts in the order in which it came. A change that is sent
//! again has lost its place there. What was submitted after it could be done before it; and if it was done already, by an
//! attempt whose answer was lost, it could be done once more over what came after it. So whatever touches some of the same
//! bytes and was submitted later waits here until it has ended: reads too, for they would show which of several such changes
//! was done last, before that is settled.
//!
//! Whose operations they are makes no difference: those of a connection that is gone, whether that was noticed or not, are
//! not done after those of the one that follows it.
//!
//! While no attempt is in vain, nothing is kept here, and nothing is asked but whether that is so.

use super::{Client, PieceState};
use base::hash::Map;
use base::{Instant, Network, ObjectKey, VolumeId};

/// An object, whichever group it is in, and whichever layer is asked for.
type Object = (VolumeId, u32);

fn object_of(key: &ObjectKey) -> Object {
    (key.layer.volume(), key.object)
}

/// The pieces of one object whose order matters.
#[derive(Debug, Default)]
struct Line {
    /// Changes that have lost their places, or are held themselves, and have not ended.
    changes: Vec<u32>,
    /// Pieces that wait for some of those.
    held: Vec<u32>,
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(super) struct Lines {
    objects: Map<Object, Line>,
    /// Objects of which a change has ended, for which others may have waited.
    moved: Vec<Object>,
}

impl Lines {
    /// Nothing is kept of an object of which there is nothing to keep.
    fn tidy(&mut self, object: Object) {
        if self.objects.get(&object).is_some_and(|line| line.changes.is_empty() && line.held.is_empty()) {
            self.objects.remove(&object);
        }
    }
}

impl Client {
    /// A change has lost its place: what comes after it waits for it.
    pub(super) fn line_up(&mut self, index: u32) {
        let piece = &mut self.pieces[index as usize];
        if piece.is_change() && !piece.is_lined_up {
            piece.is_lined_up = true;
            self.lines.objects.entry(object_of(&piece.key)).or_default().changes.push(index);
        }
    }

    /// Whether a piece has to wait for a change that was submitted before it.
    pub(super) fn is_held_back(&self, index: u32) -> bool {
        if self.lines.objects.is_empty() {
            return false;
        }
        let piece = &self.pieces[index as usize];
        let is_before = |other: &u32| {
            let other = &self.pieces[*other as usize];
            other.number < piece.number && other.touches(piece)
        };
        let line = self.lines.objects.get(&object_of(&piece.key));
        line.is_some_and(|line| line.changes.iter().any(is_before))
    }

    /// Has a piece wait.
    pub(super) fn hold_back(&mut self, index: u32) {
        // What comes after it shall not pass it.
        self.line_up(index);
        let piece = &mut self.pieces[index as usize];
        piece.state = PieceState::Held;
        self.lines.objects.entry(object_of(&piece.key)).or_default().held.push(index);
    }

    /// A piece ends.
    pub(super) fn leave_line(&mut self, index: u32) {
        let piece = &mut self.pieces[index as usize];
        let (is_lined_up, is_held) = (piece.is_lined_up, piece.state == PieceState::Held);
        if !is_lined_up && !is_held {
            return;
        }
        piece.is_lined_up = false;
        let object = object_of(&piece.key);
        if let Some(line) = self.lines.objects.get_mut(&object) {
            line.changes.retain(|other| *other != index);
            line.held.retain(|other| *other != index);
            if is_lined_up && !line.held.is_empty() {
                self.lines.moved.push(object);
            }
        }
        self.lines.tidy(object);
    }

    /// Sends what waited for changes that have ended.
    pub(super) fn release_held(&mut self, now: Instant, io: &mut impl Network) {
        while let Some(object) = self.lines.moved.pop() {
            let Some(line) = self.lines.objects.get_mut(&object) else { continue };
            let mut held = std::mem::take(&mut line.held);
            held.sort_unstable_by_key(|index| self.pieces[*index as usize].number);
            // Whoever still has to wait is held again.
            for index in held {
                self.dispatch(now, index, io);
            }
            self.lines.tidy(object);
        }
    }
}

#[cfg(test)]
mod tests;
