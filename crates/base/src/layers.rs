//! Which layers somebody sees who reads a volume, or one of its snapshots.

use crate::{LayerId, VolumeId};

/// Layers of one volume, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerSpan {
    /// The volume.
    pub volume: VolumeId,
    /// The number of the oldest of them.
    pub oldest: u32,
    /// The number of the newest.
    pub newest: u32,
}

impl LayerSpan {
    /// A layer and all older ones of its volume.
    #[must_use]
    pub const fn down_from(layer: LayerId) -> LayerSpan {
        LayerSpan { volume: layer.volume(), oldest: 0, newest: layer.number() }
    }

    /// Whether a layer is one of them.
    #[must_use]
    pub fn has(&self, layer: LayerId) -> bool {
        layer.volume() == self.volume && (self.oldest..=self.newest).contains(&layer.number())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_has_the_layers_of_its_volume_between_its_ends() {
        let (volume, other) = (VolumeId(5), VolumeId(6));
        let span = LayerSpan { volume, oldest: 3, newest: 7 };
        assert!([3, 5, 7].iter().all(|number| span.has(volume.layer(*number))));
        assert!(![2, 8].iter().any(|number| span.has(volume.layer(*number))) && !span.has(other.layer(5)));
        let down = LayerSpan::down_from(volume.layer(2));
        assert_eq!(down, LayerSpan { volume, oldest: 0, newest: 2 });
    }
}
