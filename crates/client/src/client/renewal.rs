//! What becomes of operations whose askers are gone, and of a volume that is attached anew to be rid of them.

use super::{Client, Piece, PieceState, VolumeHandle};
use crate::error::ClientError;
use base::{Generation, Instant, Network};

impl Client {
    /// Whoever asked for some operations is gone: `is_gone` says of which, by their tokens. Those that nothing was done of end
    /// at once, with [`ClientError::Abandoned`]. Changes that may have been done, or may be yet, go on, and from now on
    /// whatever touches the same bytes waits for them.
    pub fn abandon(&mut self, now: Instant, mut is_gone: impl FnMut(u64) -> bool, io: &mut impl Network) {
        self.drop_put_off(&mut is_gone);
        for operation in self.operations.iter_mut().flatten() {
            operation.is_abandoned = operation.is_abandoned || is_gone(operation.token);
        }
        for index in 0..self.pieces.len() as u32 {
            let piece = &self.pieces[index as usize];
            if !self.is_abandoned_change(piece) {
                continue;
            }
            // A question changes nothing, however late it arrives.
            let is_sent = matches!(piece.state, PieceState::Sent(_)) && !piece.asks;
            if is_sent || piece.since.is_some() {
                self.line_up(index);
            } else {
                self.drop_abandoned(index);
            }
        }
        self.release_held(now, io);
    }

    /// A volume is about to be attached anew, under a newer generation: what is refused meanwhile for its older one is tried
    /// again, and changes that were abandoned are not, until [`Self::renewed`] or [`Self::not_renewed`] is told.
    pub fn begin_renewal(&mut self, volume: VolumeHandle) {
        self.volumes[volume.0 as usize].is_renewing = true;
    }

    /// Whether a volume is being attached anew.
    #[must_use]
    pub fn is_renewing(&self, volume: VolumeHandle) -> bool {
        self.volumes[volume.0 as usize].is_renewing
    }

    /// A volume was attached anew under that generation. Whatever is sent from now on bears it; the older one may be served
    /// still.
    pub fn reattached(&mut self, volume: VolumeHandle, generation: Generation) {
        self.volumes[volume.0 as usize].generation = generation;
    }

    /// Nobody serves a volume's older generation any more. So nothing that was sent under it takes effect from now on:
    /// changes that were abandoned end, unless they were sent under the newer one since. All others go on under that.
    pub fn renewed(&mut self, now: Instant, volume: VolumeHandle, io: &mut impl Network) {
        let of = &mut self.volumes[volume.0 as usize];
        of.is_renewing = false;
        of.loose_end = of.loose_end.filter(|generation| *generation >= of.generation);
        for index in 0..self.pieces.len() as u32 {
            let piece = &self.pieces[index as usize];
            let is_its = self.is_abandoned_change(piece) && self.volume_handle(piece) == Some(volume);
            if is_its && self.was_renewed_since(index) {
                self.drop_abandoned(index);
            }
        }
        self.release_held(now, io);
    }

    /// A volume was not attached anew, or its older generation may be served still.
    pub fn not_renewed(&mut self, volume: VolumeHandle) {
        self.volumes[volume.0 as usize].is_renewing = false;
    }

    /// A piece is given up: what was sent of it may take effect later.
    pub(super) fn may_have_loose_end(&mut self, index: u32) {
        let piece = &self.pieces[index as usize];
        if let Some(volume) = self.volume_handle(piece).filter(|_| piece.is_change() && piece.since.is_some())
        {
            let of = &mut self.volumes[volume.0 as usize];
            of.loose_end = Some(of.generation);
        }
    }

    /// Whether a piece was last sent under an older generation than its volume has now.
    pub(super) fn was_renewed_since(&self, index: u32) -> bool {
        self.pieces[index as usize].generation < self.volume_of(index).generation
    }

    /// Whether a piece is not to be sent, for what was sent of it before is about to be fenced, and then it ends.
    pub(super) fn is_to_be_fenced(&self, index: u32) -> bool {
        let piece = &self.pieces[index as usize];
        piece.is_lined_up && self.is_abandoned_change(piece) && self.volume_of(index).is_renewing
    }

    fn is_abandoned_change(&self, piece: &Piece) -> bool {
        let operation = self.operations[piece.operation as usize].as_ref();
        let is_abandoned = operation.is_some_and(|operation| operation.is_abandoned);
        piece.state != PieceState::Free && piece.is_change() && is_abandoned
    }

    fn volume_handle(&self, piece: &Piece) -> Option<VolumeHandle> {
        self.operations[piece.operation as usize].as_ref().map(|operation| operation.volume)
    }

    fn drop_abandoned(&mut self, index: u32) {
        let failure = ClientError::Abandoned { volume: self.volume_name(index) };
        self.drop_piece(index, Some(failure));
    }
}

#[cfg(test)]
mod tests;
