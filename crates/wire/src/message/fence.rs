//! Fences: nobody is served any more who attached a volume under an older generation.

use crate::fields::{At, fields, sealed};
use crate::header::{HeaderBytes, Kind};
use base::{Generation, VolumeId};

fields! {
    /// An order to serve a volume to nobody under an older generation; or that it is obeyed.
    Fence {
        /// The sender's number for it, repeated in the answer; 0 if it wants none.
        request: u64 = At<16>,
        /// The volume.
        volume: VolumeId = At<24>,
        /// The oldest generation that may still be served.
        generation: Generation = At<52>,
    }
}

impl Fence {
    /// The whole order, or as [`Kind::FenceDone`] the whole answer to it.
    #[must_use]
    pub fn encode(&self, kind: Kind) -> HeaderBytes {
        sealed(kind, 0, self)
    }
}
